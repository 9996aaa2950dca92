"""Rows of what clients report of a round's training and of probes."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from flwr.app import Message

from attacks.metrics.training import CLIENT, EPSILON_WITH_PROBES, UPDATE_BYTES
from clients.task.task import Task
from clients.wire.records import tensors_of, values_of
from strategies.audit.recorder import Recorder
from strategies.audit.score_rows import mean_and_interval
from strategies.federated.replies import MOST_REPORTED, reported_by_most


def record_training(recorder: Recorder, task: Task, good: Mapping[int, Message]) -> list[str]:
    """Write a row for each number that most clients report, and one for the size of an update; the names of these numbers.

    Where numbers are left out, because there are too many or their names are too long, a failed row says so.
    """
    names, left_out = reported_by_most(good)
    if left_out:
        most = f"at most {MOST_REPORTED} with short names are recorded"
        why = f"train: {left_out} numbers that clients report are left out; {most}"
        recorder.row(task, metric=CLIENT.name, value=None, n=len(good), status="failed", message=why)
    for name in names:
        values = [
            float(values_of(reply, "metrics")[name]) for reply in good.values() if name in values_of(reply, "metrics")
        ]
        recorder.row(task, metric=name, worst=float(np.max(values)), **mean_and_interval(values))
    size = sum(delta.nbytes for delta in tensors_of(next(iter(good.values())), "arrays").values())
    recorder.row(task, metric=UPDATE_BYTES.name, value=size, n=len(good))
    return names


def record_probe(recorder: Recorder, task: Task, good: Mapping[int, Message]) -> None:
    """Write a row for the budget that clients spent with probes, where they report one."""
    spent = [values_of(reply, "metrics").get(EPSILON_WITH_PROBES.name) for reply in good.values()]
    values = [float(epsilon) for epsilon in spent if epsilon is not None]
    if values:
        recorder.row(task, metric=EPSILON_WITH_PROBES.name, worst=max(values), **mean_and_interval(values))
