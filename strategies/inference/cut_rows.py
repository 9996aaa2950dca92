"""Rows that say at which cut of the model they were measured."""

from __future__ import annotations

from typing import Any

from clients.task import Task
from strategies.guard import Rows

FIT = "fit"
"""Metric of defences that could not learn; there is a row only where they failed."""


class CutRows:
    """Rows of one phase, with a column "cut".

    Args:
        rows: Where they go.
        cut: Name of the cut.
    """

    def __init__(self, rows: Rows, cut: str) -> None:
        self._rows, self._cut = rows, cut

    def row(self, task: Task, *, metric: str, value: float | None, **fields: Any) -> None:
        """Adds one number; ``fields`` are further columns."""
        self._rows.row(task, metric=metric, value=value, cut=self._cut, **fields)
