"""The privacy budget that noise on smashed data has spent."""

from __future__ import annotations

from collections.abc import Mapping

from attacks.metrics.metric import Metric
from attacks.metrics.training import DELTA, EPSILON
from clients.task.task import Task
from strategies.exchange.guard import Rows


def record_privacy(task: Task, rows: Rows, releases: int, more: Mapping[Metric, int]) -> None:
    """Write rows "epsilon" and "delta" of clipped and noised smashed data, and rows that include further transmissions.

    Each budget is exact for independent Gaussian noise on the number of transmissions of an example in the column "releases". The
    underlying noise ratio grows with the square root of that number. ``releases`` is the number for the training or test image
    that the run has sent most often; ``more`` maps a metric to the number with further transmissions, without a row if there are
    none.
    """
    for defense in task.plan.defenses().smashed_defenses:
        if spent := defense.privacy(releases):
            for metric, times in {EPSILON: releases, **more}.items():
                if metric is EPSILON or times > releases:
                    epsilon = defense.privacy(times)["epsilon"]
                    rows.row(task, metric=metric.name, value=epsilon, worst=epsilon, releases=times)
            rows.row(task, metric=DELTA.name, value=spent["delta"], worst=spent["delta"])
