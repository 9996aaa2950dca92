"""Observations of the server of split learning: smashed data, and a step of the client half where that is trained.

A sensitive attribute is looked for in the tokens of test images, as the evaluation behind a round sends them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor

from attacks.base import AnyAttack, Knowledge
from attacks.local_model import shared_tensors
from attacks.queries.base import Query
from attacks.sender import Sender
from attacks.smashed.base import EdgeStep, SmashedAttack, SmashedData
from clients.models.split.halves import EdgeHalf
from clients.models.split.server_half import ServerHalf
from clients.models.split.split_models import SplitAdversaryBuilder
from clients.split.plan import SplitPlan
from clients.task.auxiliary import Auxiliary
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


@dataclass(frozen=True)
class SeenTestTokens(Seen):
    """The first test images of one client, as one evaluation sent them: ``features`` (B, N, D), after all defences."""

    features: Tensor


class _Tokens(Kind):
    """Tokens that leave the client half. An image keeps its row."""

    paired = True

    def sender(self, observed: Observed) -> Sender | None:
        """The clients' sending side with the weights of this round, as the server can run it."""
        edge, card = _halves(observed)[0], observed.task.plan.data_card()
        return Sender(edge, observed.task.plan.defenses, card.mean, card.std)


class Smashed(_Tokens):
    """Batches of training, or of the images that the audit asks for."""

    name = "smashed"
    title = "smashed data"
    plural = "smashed data"
    observation = SmashedData
    seen = SeenTokens
    start = "TokenDecoder()"

    def suits(self, attack: AnyAttack) -> bool:
        """Whether the attack defines its requests: number of transmissions, true orders, steps."""
        return isinstance(attack, SmashedAttack)

    def observations(self, observed: Observed) -> list[Any]:
        """Observations of each batch of smashed data, in the form that attacks receive."""
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

    def limited(self, stage: AnyAttack, observed: Observed) -> AnyAttack:
        """The attack for the number of transmissions in the run: its training depends on them."""
        first = observed.seen[0] if observed.seen else None
        limits = isinstance(stage, SmashedAttack) and isinstance(first, SeenTokens)
        return stage.limited_to(len(first.features)) if limits else stage  # type: ignore[union-attr, attr-defined]

    def depends_on(self, observed: Observed) -> str:
        """A trained client half; a frozen one is the same in every round."""
        if not SplitPlan.narrow(observed.task.plan).trains_edge:
            return ""
        return digest(part_of(observed.weights, EDGE))


class AttributesOfTokens(_Tokens):
    """A client's test images; attacks guess their sensitive attribute from the tokens sent for evaluation."""

    name = "smashed-attribute"
    title = "attributes of smashed data"
    plural = "attributes of smashed data"
    observation = Query
    seen = SeenTestTokens
    start = "AttributeInference()"
    chosen = False
    of_attributes = True

    def observations(self, observed: Observed) -> list[Any]:
        """The tokens as the server half received them."""
        card, (edge, server) = observed.task.plan.data_card(), _halves(observed)
        sent = [seen.features.to(device()) for seen in observed.seen if isinstance(seen, SeenTestTokens)]
        return [
            Query(
                features=tokens, latent=tokens, client_model=edge, server_model=server, input_shape=card.input_shape,
                mean=card.mean, std=card.std, pipeline=observed.task.plan.defenses,
            )
            for tokens in sent
        ]  # fmt: skip

    def depends_on(self, observed: Observed) -> str:
        """Both halves: adversaries may start from the server's."""
        return digest(observed.weights)

    def knowledge(self, observed: Observed) -> Knowledge:
        """The server's knowledge, with the clients' sending side and builders of adversaries for its tokens."""
        plan, card = SplitPlan.narrow(observed.task.plan), observed.task.plan.data_card()
        server = part_of(observed.weights, SERVER)
        return replace(
            super().knowledge(observed),
            sensitive=Auxiliary(plan).sensitive(),
            adversary=SplitAdversaryBuilder(plan.model, card.input_shape, plan.shape(), server),
        )


def _halves(observed: Observed) -> tuple[EdgeHalf, ServerHalf]:
    edge, server = SplitPlan.narrow(observed.task.plan).build_halves()
    load_weights(edge, {name: observed.weights.get(EDGE + name, t) for name, t in shared_tensors(edge).items()})
    load_weights(server, part_of(observed.weights, SERVER))
    for half in (edge, server):
        half.to(device()).eval().requires_grad_(False)
    return edge, server


SMASHED, TOKEN_ATTRIBUTE = Smashed(), AttributesOfTokens()
KINDS = (SMASHED, TOKEN_ATTRIBUTE)


def smashed_attacks(attacks: Iterable[AnyAttack]) -> list[SmashedAttack[Any]]:
    """Attacks that suit smashed data, with that type."""
    return [attack for attack in attacks if isinstance(attack, SmashedAttack)]
