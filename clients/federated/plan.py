"""Settings that a run of federated learning fixes for its clients."""

from dataclasses import dataclass, replace
from typing import Self

from clients.task.task import WholeModelPlan
from defenses.checks import Canaries, Examples, ProbeMode


@dataclass(frozen=True)
class FederatedPlan(WholeModelPlan):
    """A plan of federated learning.

    Attributes:
        probe_mode: "train" or "eval", of the model in probes.
        probe_steps: Local steps of a probe, each on ``probe_images`` other images.
        dp_canaries: Canaries of an auditor among each client's training examples, or under ``ClientDP`` clients that are canaries;
            0: none.
        model_check: Simulated clients refuse a model that is not the agreed one; a deployed node decides for itself.
    """

    probe_mode: ProbeMode = "train"
    probe_steps: Examples = 1
    model_check: bool = False
    dp_canaries: Canaries = 0

    @property
    def probe_size(self) -> int:
        """Images behind one probe."""
        return self.probe_images * self.probe_steps

    @property
    def of_training(self) -> Self:
        """The plan without the sizes of probes, which may differ between messages of a run."""
        return replace(self, probe_targets=1, probe_images=1, probe_steps=1)
