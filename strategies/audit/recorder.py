"""Interface of the object that keeps an audit's results."""

from __future__ import annotations

from typing import Any, Protocol

from torch import Tensor

from clients.task.task import Task
from strategies.audit.jobs import AttackJob
from strategies.audit.kinds import Observed

FIT = "fit"
"""Metric of defences that could not learn; there is a row only where they failed."""


class Recorder(Protocol):
    """Receiver of rows, pictures and unfinished jobs."""

    def row(self, task: Task, *, metric: str, value: float | None, **fields: Any) -> None:
        """Adds one number; ``fields`` are further columns."""

    def picture(self, task: Task, image: Tensor, *, image_number: int, **fields: Any) -> None:
        """Adds one image (C, H, W) in [0, 1]."""

    def open_job(self, job: AttackJob) -> None:
        """Keeps a job that has no result yet."""

    def close_job(self, job: AttackJob) -> None:
        """Forgets a job whose rows are written."""

    def keep_history(self, job: AttackJob) -> None:
        """Keep a round's observations for attacks on all rounds."""

    def history(self, job: AttackJob) -> tuple[Observed, ...]:
        """Observations from ``keep_history`` of the job's pipeline and kind, oldest first."""
