"""Settings that a run of federated learning fixes for its clients."""

from __future__ import annotations

from dataclasses import dataclass

from clients.task.task import WholeModelPlan
from clients.wire.limits import Canaries, ProbeMode


@dataclass(frozen=True)
class FederatedPlan(WholeModelPlan):
    """A plan of federated learning.

    Attributes:
        probe_mode: "train" or "eval", of the model in probes.
        dp_canaries: Canaries of an auditor among each client's training examples, or under ``ClientDP`` clients that are canaries;
            0: none.
        model_check: Simulated clients refuse a model that is not the agreed one; a deployed node decides for itself.
    """

    probe_mode: ProbeMode = "train"
    model_check: bool = False
    dp_canaries: Canaries = 0
