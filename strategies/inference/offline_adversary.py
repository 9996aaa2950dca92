"""The offline adversary of delta protection: the server trains it on its own images to show the defence where it looks."""

import functools
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from attacks.local_model import shared_tensors
from attacks.queries.attributes import AttributeInference
from attacks.refinement.restoration import HOLDOUT
from clients.inference.plan import CutModel, InferencePlan
from defenses.base import Batch
from defenses.checks import Architecture
from defenses.random_draws import generator_for
from defenses.tensors import Tensors, on_cpu, part_of, under
from strategies.audit.kinds import untrainable
from strategies.inference.observations import QUERY, adversary_builder, unprotected_knowledge
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
        self._found: dict[str, OfflineAdversary] = {}
        self._kept: dict[str, Tensors] = {}
        """Cut -> tensors of a checkpoint, until the adversary is first used."""

    def at(
        self, cut: str, plan: InferencePlan, model: CutModel, examples: Batch, sensitive: Tensor | None
    ) -> OfflineAdversary:
        """The adversary at a cut, trained on first use; ``AttackError`` without enough examples."""
        if cut not in self._found:
            weights = {name: tensor.cpu() for name, tensor in shared_tensors(model.whole).items()}
            builder = adversary_builder(plan, cut, weights)
            if cut in self._kept:
                assert sensitive is not None  # What was trained had values.
                network = builder(self.architecture, int(sensitive.max()) + 1, 0)
                kept = dict(self._kept[cut])
                held, right, most = kept.pop(HELD).tolist()
                network.load_state_dict(kept)
                self._found[cut] = OfflineAdversary(network.eval().requires_grad_(False), right, most, int(held))
                return self._found[cut]
            train = functools.partial(untrainable, QUERY.plural)
            knowledge = unprotected_knowledge(Examples(examples, sensitive), plan, model, builder, train)
            recipe = AttributeInference(architecture=self.architecture, training="static", iterations=self.iterations)
            learned = recipe.fit(knowledge, generator_for("offline adversary", plan.seed, cut)).learned
            assert learned is not None
            measured = learned.diagnostics
            self._found[cut] = OfflineAdversary(
                learned.network.eval(),
                measured["holdout_accuracy"],
                measured["holdout_majority"],
                len(examples) // HOLDOUT,
            )
        return self._found[cut]

    def tensors(self) -> Tensors:
        """All adversaries, under flat names."""
        flat: Tensors = {}
        for cut, kept in self._kept.items():
            flat |= under(f"{cut}/", kept)
        for cut, adversary in self._found.items():
            numbers = torch.tensor([adversary.held, adversary.accuracy, adversary.majority], dtype=torch.float64)
            flat |= on_cpu(adversary.network.state_dict(), f"{cut}/")
            flat[f"{cut}/{HELD}"] = numbers
        return flat

    def restore(self, tensors: Tensors) -> None:
        """Resume from the output of ``tensors``; adversaries that exist already stay."""
        for cut in {name.partition("/")[0] for name in tensors} - set(self._found):
            self._kept[cut] = part_of(tensors, f"{cut}/")
