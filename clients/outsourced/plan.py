"""What a run of outsourced training fixes for its clients."""

from __future__ import annotations

from dataclasses import dataclass

from clients.task import WholeModelPlan


@dataclass(frozen=True)
class OutsourcedPlan(WholeModelPlan):
    """A plan of outsourced training: that of whole models, which here the server trains."""
