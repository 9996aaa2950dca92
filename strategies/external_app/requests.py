"""Requests of a curious server besides training: probes, and the distance of a reply from the assumed step."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict

from clients.task.task import Task
from clients.wire.records import values_of
from strategies.audit.recorder import Recorder
from strategies.exchange.exchange import Exchange
from strategies.exchange.guard import GuardedExchange
from strategies.external_app.assumptions import DIFFERENCE


@dataclass(frozen=True)
class AppExchange(Exchange):
    """An ``Exchange`` whose messages also carry the configuration of the app's own round, because mods read it there.

    Attributes:
        own: Record name -> the configuration that the round's messages hold.
    """

    own: Mapping[str, ConfigRecord] = field(default_factory=dict)

    def messages(self, message_type: str, contents: Mapping[int, RecordDict]) -> list[Message]:
        """One message to the node of each partition in ``contents``."""
        return super().messages(message_type, {at: beside_own(self.own, one) for at, one in contents.items()})


def common_config(messages: Sequence[Message]) -> dict[str, ConfigRecord]:
    """The configuration that all of a round's messages share; settings of a single node go to no other node."""
    first, *others = [{name: dict(one) for name, one in m.content.config_records.items()} for m in messages]
    return {
        name: ConfigRecord(
            {key: value for key, value in record.items() if all(_holds(one, name, key, value) for one in others)}
        )
        for name, record in first.items()
    }


def _holds(records: Mapping[str, Mapping[str, Any]], name: str, key: str, value: Any) -> bool:
    return key in records.get(name, {}) and records[name][key] == value


def beside_own(own: Mapping[str, ConfigRecord], content: RecordDict) -> RecordDict:
    """A message's content with an app's configuration records; where both have a record or a key, the message's own key counts."""
    configs = {
        name: ConfigRecord({**own.get(name, {}), **content.config_records.get(name, {})})
        for name in {**own, **content.config_records}
    }
    return RecordDict({**content, **configs})


def probe_question(sent: Message, task: Task, target: int, timeout: float) -> RecordDict:
    """The app's own message of training, with the task in its configuration."""
    config = ConfigRecord({"task": task.to_json(), "timeout": timeout, "target": target})
    (arrays,) = sent.content.array_records.values()
    own = dict(sent.content.config_records)
    return beside_own(own, RecordDict({"arrays": ArrayRecord(dict(arrays)), "config": config}))


def ask_differences(
    exchange: Exchange, rows: Recorder, task: Task, pairs: Mapping[int, tuple[Message, Message]]
) -> list[float]:
    """Have clients compare their replies with the step that attacks assume on their examples; add a row for each.

    ``pairs`` map a partition to its message of training and its reply, each with one ArrayRecord, of a round of a single step.
    """
    questions = {partition: _check_question(*pair, task, exchange.timeout) for partition, pair in pairs.items()}
    answers = GuardedExchange(exchange, rows).ask(task, "query.check", questions, _fault)
    found = {partition: float(values_of(reply, "metrics")["difference"]) for partition, reply in answers.items()}
    for partition, value in found.items():
        rows.row(task, metric=DIFFERENCE, value=value, client=partition)
    return list(found.values())


def _check_question(sent: Message, reply: Message, task: Task, timeout: float) -> RecordDict:
    config = ConfigRecord({"task": task.to_json(), "timeout": timeout})
    (before,), (after,) = (message.content.array_records.values() for message in (sent, reply))
    return RecordDict({"sent": before, "reply": after, "config": config})


def _fault(partition: int, reply: Message) -> str:
    del partition
    value = values_of(reply, "metrics").get("difference")
    good = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value >= 0
    return "" if good else "it has no difference, a number from 0 on"
