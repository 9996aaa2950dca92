"""Observations of the server of split learning: smashed data, and a step of the client half where that is trained."""

from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from attacks.base import AnyAttack
from attacks.local_model import shared_tensors
from attacks.sender import Sender
from attacks.smashed.base import EdgeStep, SmashedAttack, SmashedData
from clients.models.split.halves import EdgeHalf, ServerHalf
from clients.split.plan import SplitPlan
from clients.task.task import load_weights
from clients.training.evaluation import device
from defenses.tensors import Update, part_of
from strategies.audit.kinds import Kind, Observed, Seen, digest

EDGE, SERVER = "edge/", "server/"
"""Prefixes of the weights of a split model's halves."""


@dataclass(frozen=True)
class SeenTokens(Seen):
    """One audit batch of smashed data.

    Attributes:
        features: (R, B, N, D), see ``attacks.smashed.base.SmashedData``.
        update: The client half's update after one step on it, empty without one.
        gradient: What the server returned for the first transmission, (B, N, D), behind ``update``.
        orders: True order of its tokens (R, B, N), for upper bounds only.
    """

    features: Tensor
    update: Update = field(default_factory=dict)
    gradient: Tensor | None = None
    orders: Tensor | None = None


def _sends(observed: Observed) -> dict[str, Any]:
    """The clients' sending side with the weights of this round, as the server can run it."""
    edge, card = _halves(observed)[0], observed.task.plan.data_card()
    return {"sender": Sender(edge, observed.task.plan.defenses, card.mean, card.std)}


def _read(observed: Observed) -> list[Any]:
    task, card = observed.task, observed.task.plan.data_card()
    edge, server = _halves(observed)
    return [
        SmashedData(
            features=seen.features.to(device()),
            num_targets=seen.num_examples,
            edge=edge,
            server=server,
            input_shape=card.input_shape,
            mean=card.mean,
            std=card.std,
            orders=seen.orders,
            step=None
            if seen.gradient is None
            else EdgeStep(seen.update, seen.gradient, task.learning_rate, task.plan.weight_decay),
        )
        for seen in observed.seen
        if isinstance(seen, SeenTokens)
    ]


def _limited(stage: AnyAttack, observed: Observed) -> AnyAttack:
    """The attack for the number of transmissions in the run: its training depends on them."""
    first = observed.seen[0] if observed.seen else None
    limits = isinstance(stage, SmashedAttack) and isinstance(first, SeenTokens)
    return stage.limited_to(len(first.features)) if limits else stage  # type: ignore[union-attr, attr-defined]


def _trained_edge(observed: Observed) -> str:
    """A trained client half; a frozen one is the same in every round."""
    trains = SplitPlan.narrow(observed.task.plan).trains_edge
    return digest(part_of(observed.weights, EDGE)) if trains else ""


def _halves(observed: Observed) -> tuple[EdgeHalf, ServerHalf]:
    edge, server = SplitPlan.narrow(observed.task.plan).build_halves()
    load_weights(edge, {name: observed.weights.get(EDGE + name, t) for name, t in shared_tensors(edge).items()})
    load_weights(server, part_of(observed.weights, SERVER))
    for half in (edge, server):
        half.to(device()).eval().requires_grad_(False)
    return edge, server


SMASHED = Kind(
    "smashed", "smashed data", SmashedData, _read, seen=SeenTokens, start="TokenDecoder()", chains=False, paired=True,
    limited=_limited, depends_on=_trained_edge, knows=_sends,
)  # fmt: skip
"""Batches of training, or of the images that the audit asks for."""
KINDS = (SMASHED,)
