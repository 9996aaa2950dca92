"""The offline adversary of delta protection: the server trains it on its own images to show the defence where it looks."""

import functools
from dataclasses import dataclass

import torch
from torch import nn

from attacks.base import Knowledge
from attacks.local_model import shared_tensors
from attacks.queries.attributes import AttributeInference
from attacks.refinement.restoration import HOLDOUT
from attacks.sender import Sender
from clients.inference.plan import CutModel, InferencePlan
from defenses.checks import Architecture
from defenses.pipeline import Pipeline
from defenses.random_draws import generator_for
from defenses.tensors import Tensors, on_cpu, part_of
from strategies.audit.kinds import untrainable
from strategies.inference.observations import QUERY, adversary_builder
from strategies.inference.public_model import Examples

HELD = "held/"
"""What a checkpoint keeps of the held-out images: how many, the share that is right, and that of the most frequent value."""


@dataclass(frozen=True)
class OfflineAdversary:
    """A network, features (B, C', H', W') -> logits (B, K'), in eval mode on the CPU, and its accuracy.

    ``accuracy`` is on ``held`` images of the server's own that it was not trained on, with unprotected features; ``majority``
    is that of answering them with the most frequent value.
    """

    network: nn.Module
    accuracy: float
    majority: float
    held: int


class OfflineAdversaries:
    """One adversary for each cut, shared by all pipelines of a run: it sees unprotected features alone.

    Its randomness is not that of the attacks, which have another network of the same architecture (see
    ``attacks.queries.attributes``).
    """

    def __init__(self, architecture: Architecture, iterations: int) -> None:
        self.architecture, self.iterations = architecture, iterations
        self._learned: dict[str, Tensors] = {}
        """Cut -> the adversary's tensors, as a checkpoint keeps them."""

    def at(self, cut: str, plan: InferencePlan, model: CutModel, examples: Examples) -> OfflineAdversary:
        """The adversary at a cut, trained on first use; ``AttackError`` without enough examples."""
        weights = {name: tensor.cpu() for name, tensor in shared_tensors(model.whole).items()}
        builder = adversary_builder(plan, cut, weights)
        if cut not in self._learned:
            card, plain = plan.data_card(), Pipeline()
            knowledge = Knowledge(
                examples.batch, plain, card.mean, card.std, functools.partial(untrainable, QUERY.plural),
                sensitive=examples.sensitive, adversary=builder, sender=Sender(model.client, plain, card.mean, card.std),
            )  # fmt: skip
            recipe = AttributeInference(architecture=self.architecture, training="static", iterations=self.iterations)
            learned = recipe.fit(knowledge, generator_for("offline adversary", plan.seed, cut)).learned
            assert learned is not None
            measured = [learned.diagnostics[name] for name in ("holdout_accuracy", "holdout_majority")]
            numbers = torch.tensor([len(examples) // HOLDOUT, *measured], dtype=torch.float64)
            self._learned[cut] = on_cpu(learned.network.state_dict()) | {HELD: numbers}
        assert examples.sensitive is not None  # or nothing was learned
        network = builder(self.architecture, int(examples.sensitive.max()) + 1, 0)
        kept = dict(self._learned[cut])
        held, accuracy, majority = kept.pop(HELD).tolist()
        network.load_state_dict(kept)
        return OfflineAdversary(network.eval().requires_grad_(False), accuracy, majority, int(held))

    def tensors(self) -> Tensors:
        """All adversaries, under flat names."""
        return {f"{cut}/{name}": tensor for cut, kept in self._learned.items() for name, tensor in kept.items()}

    def restore(self, tensors: Tensors) -> None:
        """Resume from the output of ``tensors``; adversaries that exist already stay."""
        for cut in {name.partition("/")[0] for name in tensors} - set(self._learned):
            self._learned[cut] = part_of(tensors, f"{cut}/")
