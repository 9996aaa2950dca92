"""Rows of what clients report of a whole model's accuracy, and of the privacy budget that noise on smashed data has spent."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from flwr.app import Message

from attacks.metrics.metric import Metric
from attacks.metrics.names import ScoreName
from attacks.metrics.training import DELTA, EPSILON
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


def record_privacy(task: Task, rows: Rows, releases: int, more: Mapping[Metric, int]) -> None:
    """Write rows "epsilon" and "delta" of clipped and noised smashed data, and rows that include further transmissions.

    Each budget is exact for independent Gaussian noise on the number of transmissions of an example in the column "releases". The
    underlying noise ratio grows with the square root of that number. ``releases`` is the number for the training or test image
    that the run has sent most often; ``more`` maps a metric to the number with further transmissions, without a row if there are
    none.
    """
    for defense in task.plan.defenses.smashed_defenses:
        if spent := defense.privacy(releases):
            for metric, times in {EPSILON: releases, **more}.items():
                if metric is EPSILON or times > releases:
                    epsilon = defense.privacy(times)["epsilon"]
                    rows.row(task, metric=metric.name, value=epsilon, worst=epsilon, releases=times)
            rows.row(task, metric=DELTA.name, value=spent["delta"], worst=spent["delta"])
