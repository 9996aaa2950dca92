"""Settings that a run of edge-cloud inference fixes for its clients."""

from dataclasses import dataclass

from torch import nn

from clients.models.cuts import CUTS, checked_cut, halves
from clients.models.library import ModelError
from clients.task.task import WholeModelPlan, load_weights
from clients.training.evaluation import device
from defenses.checks import Text
from defenses.tensors import NamedTensors


@dataclass(frozen=True)
class CutModel:
    """A classifier in two halves, in eval mode and frozen; all three modules share their weights.

    Attributes:
        whole: Normalised images (B, C, H, W) -> logits (B, K).
        client: Its lower half: normalised images -> features (B, C', H', W').
        server: The rest: features -> logits.
    """

    whole: nn.Module
    client: nn.Module
    server: nn.Module


@dataclass(frozen=True)
class InferencePlan(WholeModelPlan):
    """A plan of edge-cloud inference: the plan of a whole model trained by the server, and the cut of that model.

    Each cut is a phase behind the last round: phase ``rounds + k`` serves queries at the k-th cut.

    Attributes:
        cuts: Names of the cuts (see ``clients.models.cuts``), separated by commas; "": the model's first.
    """

    cuts: Text = ""

    @property
    def cut_names(self) -> tuple[str, ...]:
        """The cuts in order, or the model's first; ``ModelError`` where the model lacks one, or one is named twice."""
        named = (
            [word.strip() for word in self.cuts.split(",")] if self.cuts else [next(iter(CUTS.get(self.model, ())), "")]
        )
        if repeated := {name for name in named if named.count(name) > 1}:
            raise ModelError(f"cut {min(repeated)!r} is named twice; allowed: each once")
        return tuple(checked_cut(self.model, name) for name in named)

    def phase_of(self, server_round: int) -> int:
        """The phase behind the last round, from 1; 0 and less in rounds of training."""
        return server_round - self.rounds

    def cut_of(self, server_round: int) -> str:
        """The cut that is served in a phase; ``ValueError`` when nothing is served in that round."""
        names, phase = self.cut_names, self.phase_of(server_round)
        if not 0 < phase <= len(names):
            first, last = self.rounds + 1, self.rounds + len(names)
            raise ValueError(
                f"queries were requested in round {server_round}; allowed: {first} to {last}, one for each cut"
            )
        return names[phase - 1]

    def cut_at(self, server_round: int) -> str:
        """The cut that is served in a phase; "" in rounds of training."""
        return self.cut_of(server_round) if self.phase_of(server_round) > 0 else ""

    def build_cut(self, cut: str, weights: NamedTensors | None = None) -> CutModel:
        """The model in two halves, ready for use, with ``weights`` of the whole model, or the initial ones."""
        whole = self.build_model()
        if weights is not None:
            load_weights(whole, weights)
        whole.to(device()).eval().requires_grad_(False)
        client, server = halves(whole, self.model, cut)
        return CutModel(whole, client.eval(), server.eval())
