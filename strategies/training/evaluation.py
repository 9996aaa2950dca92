"""The clients' reports of a whole model's accuracy: checked, averaged over test examples, written into rows."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from flwr.app import Message

from attacks.metrics.names import ScoreName
from clients.task.task import Task
from clients.training.evaluation import REPORTED
from clients.wire.records import values_of
from clients.wire.texts import shortened
from strategies.exchange.guard import Rows


def fault_in_report(_: int, reply: Message, shares: Sequence[str] = ()) -> str:
    """Reason why a client's evaluation is invalid, or ""; ``shares`` names further reported numbers from 0 to 1."""
    found, names = values_of(reply, "metrics"), (*REPORTED, *shares)
    if set(found) != {*names, "num-examples"}:
        return f"metrics: {shortened(sorted(found)[:20])}; expected num-examples, {', '.join(names)}"
    count = found["num-examples"]
    if not isinstance(count, int) or count < 1:
        return f"metrics: num-examples is {shortened(count)}, expected a whole number from 1"
    for name in names:
        value, highest = found[name], 1.0 if "accuracy" in name or name in shares else math.inf
        if not isinstance(value, int | float) or not math.isfinite(value) or not 0 <= value <= highest:
            return f"metrics: {name} is {shortened(value)}, expected a number from 0" + (
                " to 1" if highest == 1 else ""
            )
    return ""


def record_reports(
    task: Task, replies: Mapping[int, Message], rows: Rows, shares: Sequence[str] = ()
) -> dict[str, float]:
    """Write means over the test examples of all clients, and a row for each; see ``fault_in_report`` for ``shares``."""
    found = [values_of(reply, "metrics") for reply in replies.values()]
    total = sum(int(one["num-examples"]) for one in found)
    means = {
        name: sum(float(one[name]) * int(one["num-examples"]) for one in found) / total
        for name in (*REPORTED, *shares)
        if total
    }
    for name in sorted(means):
        metric, reference = REPORTED.get(name, ScoreName(name))
        rows.row(task, metric=metric, reference=reference, value=means[name], n=total)
    return means
