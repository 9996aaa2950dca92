"""The privacy budget that a client reports with a round of training; no Flower here."""

from collections.abc import Mapping
from typing import Any

from attacks.metrics.training import EPSILON_BY
from clients.task.task import Task
from defenses.pipeline import Pipeline
from defenses.tensors import Numbers


def budget_spent(pipeline: Pipeline, task: Task, state: Mapping[str, Any]) -> Numbers:
    """Metrics "epsilon" and "delta" of all steps recorded in a training state; after the last round, epsilon by every accountant.

    Only then, because the closest accountants take a second or more.
    """
    spent = pipeline.privacy(state)
    if task.round < task.plan.rounds:
        return spent
    epsilons = pipeline.privacy_by_accountant(state)
    return spent | {f"{EPSILON_BY.name}{name}": epsilon for name, epsilon in epsilons.items()}
