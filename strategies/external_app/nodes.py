"""The nodes of an app that answer a curious server, and the metadata that the first of them reports."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid

from clients.external_app.partial import FROZEN_DIGEST, UNSENT, AppModel, ModelMismatchError
from clients.task.task import Task
from clients.wire.records import reason_of, to_tensors, values_of
from clients.wire.texts import shortened
from strategies.audit.threat_card import FROM_SEED, OWN_SECRET
from strategies.external_app.replies import UnusableReplyError, card_text
from strategies.external_app.requests import beside_own

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
            odd = [name for name, value in self.reported.items() if card_text(reply, name) != value]
            if odd:
                different = ", ".join(f"{name} {shortened(card_text(reply, name))}" for name in odd)
                left_out.append((_partition(reply), f"this node differs from the first and is left out: {different}"))
                continue
            self.examples[_partition(reply)] = int(values_of(reply, "metrics")["train-examples"])
            self.ids[_partition(reply)] = reply.metadata.src_node_id
        return left_out

    def _left_out_of(self, messages: Iterable[Message]) -> tuple[str, ...]:
        """The frozen parameters that the first message with one ArrayRecord leaves out; none where its arrays cannot be named."""
        for message in messages:
            records = list(message.content.array_records.values())
            if len(records) == 1:
                with suppress(ModelMismatchError):  # which ``weights_sent`` reports
                    return self._model.unsent(self._model.named(to_tensors(records[0])))
                return ()
        return ()

    def _begin(self, answered: Sequence[Message], replies: Sequence[Message]) -> None:
        if not answered:
            reason = "; ".join(sorted({reason_of(reply) for reply in replies})) or "no reply"
            hint = " (does the ClientApp call answer_audits?)" if UNREGISTERED in reason else ""
            raise UnusableReplyError(f"no node answers audits{hint}: {reason}")
        self.reported = {name: card_text(answered[0], name) for name in REPORTED}
        words = {"seed": FROM_SEED, "secret": OWN_SECRET}
        self.randomness = " or ".join(sorted({words.get(card_text(one, "randomness"), "unknown") for one in answered}))

    def numbered(self, messages: Iterable[Message], *, sent: bool = False) -> list[tuple[int, Message]]:
        """(partition, message) of known nodes, in order of partition: messages to them where ``sent``, else replies."""
        of = {one.metadata.dst_node_id if sent else one.metadata.src_node_id: one for one in messages}
        return [(partition, of[node]) for partition, node in sorted(self.ids.items()) if node in of]


def _partition(reply: Message) -> int:
    return int(values_of(reply, "metrics")["partition"])
