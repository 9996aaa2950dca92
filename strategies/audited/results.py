"""What an audit of an app needs of whoever keeps its results, and an auditor that says what protects the replies."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from clients.audited.client import CROSS_ENTROPY
from clients.audited.plan import AppPlan
from clients.task import Task
from strategies.audit.auditor import Auditor
from strategies.audit.kinds import Kind, Seen
from strategies.audit.recorder import Recorder
from strategies.audit.threat_card import ThreatCard


class Results(Recorder, Protocol):
    """Keeps rows and pictures, and makes a report of them."""

    def flush(self) -> None:
        """Writes what there is."""

    def finish(self) -> None:
        """Judges the rows and writes the report."""


OpenResults = Callable[[AppPlan], Results]
"""Called once it is known what the nodes have."""


class AppAuditor(Auditor):
    """As for fedveil's own clients; threat cards say which mods a reply passed.

    Attributes:
        loss: What the app calls its loss.
    """

    loss = CROSS_ENTROPY

    def card(self, task: Task, kind: Kind, seen: Sequence[Seen], accuracy: float | None, **facts: Any) -> ThreatCard:
        """The threat card."""
        told = {
            "mods": task.plan.pipeline or "none",
            "loss": self.loss if self.loss == CROSS_ENTROPY else f"{self.loss}; attacks assume {CROSS_ENTROPY}",
            "data": "the app's own; augmentation and optimizer as its owner told",
        }
        return super().card(task, kind, seen, accuracy, **facts).but(**told)
