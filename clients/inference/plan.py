"""What a run of edge-cloud inference fixes for its clients."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor, nn

from clients.evaluation import device
from clients.models.cuts import CUTS, checked_cut, halves
from clients.task import Plan, WholeModelPlan, load_weights


@dataclass(frozen=True)
class CutModel:
    """A classifier in two halves, in eval mode and frozen.

    Attributes:
        whole: Normalised images (B, C, H, W) -> logits (B, K).
        client: Its lower half: normalised images -> features (B, C', H', W').
        server: The rest: features -> logits. All three share their weights.
    """

    whole: nn.Module
    client: nn.Module
    server: nn.Module

    def ready(self) -> CutModel:
        """Itself, where this process computes."""
        self.whole.to(device()).eval().requires_grad_(False)
        for half in (self.client, self.server):
            half.eval()
        return self


@dataclass(frozen=True)
class InferencePlan(WholeModelPlan):
    """A plan of edge-cloud inference: that of a whole model, which the server trains, and where it is cut.

    Attributes:
        cut: Name of the cut (see ``clients.models.cuts``); "": the model's first.
    """

    cut: str = ""

    @property
    def cut_name(self) -> str:
        """The cut; where none is named, the model's first.

        Raises:
            ModelError: When the model has no such cut, or none at all.
        """
        return checked_cut(self.model, self.cut or next(iter(CUTS.get(self.model, ())), ""))

    def build_cut(self, weights: Mapping[str, Tensor] | None = None) -> CutModel:
        """The model in two halves, ready for use.

        Args:
            weights: Of the whole model; None leaves the initial ones.

        Raises:
            ModelError: When the model has no such cut.
        """
        whole = self.build_model()
        if weights is not None:
            load_weights(whole, weights)
        return CutModel(whole, *halves(whole, self.model, self.cut_name)).ready()

    def build_client_half(self, weights: Mapping[str, Tensor]) -> nn.Module:
        """The client half alone, with the weights that its own names give, ready for use."""
        cut = self.build_cut()
        load_weights(cut.client, weights)
        return cut.client


def inference_plan(plan: Plan) -> InferencePlan:
    """The plan as that of a run of edge-cloud inference.

    Raises:
        TypeError: When it is of another scenario.
    """
    if not isinstance(plan, InferencePlan):
        raise TypeError(f"a run of scenario {plan.scenario!r} asks a cloud half nothing")
    return plan
