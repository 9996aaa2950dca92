"""Requests of a curious server besides training: probes, and how far a reply lies from the assumed step."""

from __future__ import annotations

import math
from collections.abc import Mapping

from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict

from clients.task.task import Task
from clients.wire.records import values_of
from strategies.audit.recorder import Recorder
from strategies.exchange.exchange import Exchange
from strategies.exchange.guard import GuardedExchange
from strategies.external_app.assumptions import DIFFERENCE


def probe_question(sent: Message, task: Task, target: int, timeout: float) -> RecordDict:
    """The app's own message of training, with the task beside its configuration: mods look for their settings there."""
    own = {key: value for record in sent.content.config_records.values() for key, value in record.items()}
    config = ConfigRecord({**own, "task": task.to_json(), "timeout": timeout, "target": target})
    (arrays,) = sent.content.array_records.values()
    return RecordDict({"arrays": ArrayRecord(dict(arrays)), "config": config})


def ask_differences(
    exchange: Exchange, rows: Recorder, task: Task, pairs: Mapping[int, tuple[Message, Message]]
) -> list[float]:
    """Have clients compare their replies with one step on their examples as attacks reckon with it; a row for each.

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
