"""The nodes of an app that answer a curious server: their metadata, and what it asks of them besides training."""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid

from clients.external_app.partial import FROZEN_DIGEST, UNSENT, AppModel
from clients.task.task import Task
from clients.wire.records import reason_of, values_of
from clients.wire.texts import shortened
from strategies.audit.threat_card import FROM_SEED, OWN_SECRET
from strategies.exchange.exchange import Exchange
from strategies.exchange.faults import fault_in_count
from strategies.external_app.replies import UnusableReplyError, card_text, tensors_of


@dataclass(frozen=True)
class AppExchange(Exchange):
    """An ``Exchange`` whose messages also carry the configuration of the app's own round, because mods read it there.

    Attributes:
        own: Record name -> the configuration that the round's messages hold.
    """

    own: Mapping[str, ConfigRecord] = field(default_factory=dict)

    def messages(self, message_type: str, contents: Mapping[int, RecordDict]) -> list[Message]:
        """One message to the node of each partition in ``contents``."""
        return super().messages(message_type, {at: beside_own(self.own, content) for at, content in contents.items()})


def common_config(messages: Sequence[Message]) -> dict[str, ConfigRecord]:
    """The configuration that all of a round's messages share; settings of a single node go to no other node."""
    first, *others = [{name: dict(record) for name, record in m.content.config_records.items()} for m in messages]
    return {
        name: ConfigRecord(
            {key: value for key, value in record.items() if all(m.get(name, {}).get(key) == value for m in others)}
        )
        for name, record in first.items()
    }


def beside_own(own: Mapping[str, ConfigRecord], content: RecordDict) -> RecordDict:
    """A message's content with an app's configuration records; where both have a record or a key, the message's own key counts."""
    configs = {
        name: ConfigRecord({**own.get(name, {}), **content.config_records.get(name, {})})
        for name in {**own, **content.config_records}
    }
    return RecordDict({**content, **configs})


def probe_question(sent: Message, config: ConfigRecord) -> RecordDict:
    """The app's own message of training, with the task and the target of the probe in its configuration."""
    (arrays,) = sent.content.array_records.values()
    return beside_own(
        dict(sent.content.config_records), RecordDict({"arrays": ArrayRecord(dict(arrays)), "config": config})
    )


REPORTED = ("card", "protection", "loss", "budgets")
"""Texts of ``query.setup``: the card of a node's data, what protects its replies, its loss, and its mods' privacy budgets."""
UNREGISTERED = "No query function registered"
"""What Flower answers where an app has no function for a message."""


class AppNodes:
    """Nodes that all report the same metadata as the first: a threat card could not describe others.

    Attributes:
        ids: Partition -> node id.
        examples: Partition -> how many examples its ``data`` gives.
        reported: Name of a text -> what the first node reports; empty before a node has answered.
        randomness: Where the draws of the nodes start, for threat cards.
        unsent: Names of frozen parameters that no message holds. A node answers only if it builds the same as the server.
    """

    def __init__(self, model: AppModel) -> None:
        self._model = model
        self.unsent: tuple[str, ...] = ()
        self.ids: dict[int, int] = {}
        self.examples: dict[int, int] = {}
        self.reported: dict[str, str] = {}
        self.randomness = ""

    def set_up(self, task: Task, sent: Mapping[int, Message], grid: Grid, timeout: float) -> list[tuple[int, str]]:
        """Request the metadata of new nodes; (partition, why) of those left out. ``UnusableReplyError`` while no node answers.

        ``sent`` maps a node to the round's own message, whose configuration the request carries, too.
        """
        known, config = set(self.ids.values()), ConfigRecord({"task": task.to_json(), "timeout": timeout})
        if unsent := self._left_out_of(sent.values()):
            self.unsent = unsent
            config[UNSENT], config[FROZEN_DIGEST] = list(unsent), self._model.digest(unsent)
        requests = [
            Message(
                beside_own(dict(message.content.config_records), RecordDict({"config": config})),
                dst_node_id=node,
                message_type="query.setup",
            )
            for node, message in sent.items()
            if node not in known
        ]
        replies = list(grid.send_and_receive(requests, timeout=timeout)) if requests else []
        answered = sorted((reply for reply in replies if not reply.has_error()), key=_partition)
        if not self.reported:
            self._begin(answered, replies)
        left_out = []
        for reply in answered:
            partition, count = _partition(reply), values_of(reply, "metrics").get("train-examples")
            said = {name: card_text(reply, name) for name in REPORTED}
            if odd := [f"{name} {shortened(text)}" for name, text in said.items() if text != self.reported[name]]:
                left_out.append((partition, f"this node differs from the first and is left out: {', '.join(odd)}"))
            elif why := fault_in_count({"num-examples": count}):
                left_out.append((partition, f"this node is left out: {why}"))
            else:
                self.examples[partition], self.ids[partition] = int(count or 0), reply.metadata.src_node_id
        return left_out

    def _left_out_of(self, messages: Iterable[Message]) -> tuple[str, ...]:
        """The frozen parameters that the first message with one ArrayRecord leaves out; none where its arrays cannot be named."""
        for message in messages:
            if len(message.content.array_records) == 1:
                with suppress(UnusableReplyError):  # which ``weights_sent`` reports
                    return self._model.unsent(tensors_of(message, self._model))
                return ()
        return ()

    def _begin(self, answered: Sequence[Message], replies: Sequence[Message]) -> None:
        if not answered:
            reason = "; ".join(sorted({reason_of(reply) for reply in replies})) or "no reply"
            hint = " (does the ClientApp call answer_audits?)" if UNREGISTERED in reason else ""
            raise UnusableReplyError(f"no node answers audits{hint}: {reason}")
        self.reported = {name: card_text(answered[0], name) for name in REPORTED}
        words = {"seed": FROM_SEED, "secret": OWN_SECRET}
        said = {words[text] for reply in answered if (text := card_text(reply, "randomness")) in words}
        self.randomness = " or ".join(sorted(said)) or "unknown"

    def numbered(self, messages: Iterable[Message], *, sent: bool = False) -> list[tuple[int, Message]]:
        """(partition, message) of known nodes, in order of partition: messages to them where ``sent``, else replies."""
        of = {message.metadata.dst_node_id if sent else message.metadata.src_node_id: message for message in messages}
        return [(partition, of[node]) for partition, node in sorted(self.ids.items()) if node in of]


def _partition(reply: Message) -> int:
    return int(values_of(reply, "metrics")["partition"])
