"""Canaries among the examples of a federation's clients: where they are, which is public, and what an auditor makes of updates.

A gradient canary is an example whose gradient is zero except at one weight. Its coin decides the sign of this gradient under
"replace-one", and whether the example exists under "add-or-remove". Half of the canaries change their sign in every second round:
noise that a client reuses in each round cancels from their scores.

A lone canary is an extreme image whose gradient is set to zero, so that only side channels show it: reported numbers, buffers, and
the length of updates. Its coin decides between a bright and a dark image, or whether the bright one exists.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from attacks.dp_audit.verdict import ALL, CanaryPart
from attacks.observations import AttackError
from defenses.neighbours import ADD_OR_REMOVE
from defenses.pipeline import Pipeline
from defenses.random_draws import generator_for
from defenses.tensors import Update
from defenses.training.dp_sgd import DPSGD

NO_CANARY, EMPTY = -1, -2
"""In place of the number of a weight: an example with its own gradient, and one whose gradient is set to zero."""
NORM = 10.0
"""Length of a canary's gradient in clipping norms: above 1, so that missing clipping shows."""
BRIGHT, DARK = 100.0, -100.0
"""Pixels of a lone canary. Images lie in [0, 1]; one outside is a worst case, which a bound covers."""
TURNING = "canaries of alternating sign"
"""The part of the canaries that show noise reused over rounds."""


@dataclass(frozen=True)
class PlacedCanaries:
    """The gradient canaries of one client.

    Attributes:
        sizes: Name of each trained tensor -> its number of weights, in the model's order.
        weights: (M,) int64, ascending: the weight of each canary, counted over all tensors; no weight has two.
        turns: (M,) bool: the sign changes in every second round.
        lone: The client has a lone canary besides.
    """

    sizes: Mapping[str, int]
    weights: Tensor
    turns: Tensor
    lone: bool

    @classmethod
    def of(cls, sizes: Mapping[str, int], count: int, neighbours: str, seed: int, partition: int) -> PlacedCanaries:
        """Draw the places of ``count`` canaries, spread evenly over the tensors as far as their sizes allow.

        Under "add-or-remove" the number of a client's examples depends on all of its coins. So clients of odd partitions have a
        lone canary and no others, and clients of even partitions have no lone canary. ``neighbours`` are those of the audited
        bound; ``seed`` is the run's, as places are public.
        """
        apart = neighbours == ADD_OR_REMOVE
        generator = generator_for("canary places", seed, partition)
        weights = spread(sizes, 0 if apart and partition % 2 else count, generator)
        turns = torch.rand(len(weights), generator=generator) < 0.5
        return cls(sizes, weights, turns, not apart or partition % 2 == 1)

    @classmethod
    def steady(cls, sizes: Mapping[str, int], count: int, generator: torch.Generator) -> PlacedCanaries:
        """Draw the places of ``count`` canaries, as ``of`` does, whose signs never change; without a lone canary."""
        weights = spread(sizes, count, generator)
        return cls(sizes, weights, torch.zeros(len(weights), dtype=torch.bool), False)

    def __len__(self) -> int:
        return len(self.weights)

    def signs(self, server_round: int) -> Tensor:
        """Sign (M,) of each canary's gradient in a round, for a coin of 1."""
        return torch.where(self.turns & (server_round % 2 == 0), -1.0, 1.0)

    def scores(self, update: Update, server_round: int) -> Tensor:
        """How far an update moved each canary's weight against its gradient for a coin of 1: (M,), float64."""
        flat = torch.cat([update[name].flatten().double() for name in self.sizes])
        return -flat[self.weights] * self.signs(server_round)

    def tensors(self) -> Tensor:
        """Number of the tensor (M,) of each canary's weight."""
        return torch.bucketize(self.weights, torch.tensor(list(self.sizes.values())).cumsum(0), right=True)


def audited_defense(pipeline: Pipeline) -> DPSGD | None:
    """The DP-SGD of a pipeline, whose claim canaries can test; None without one."""
    return next((defense for defense in pipeline.defenses if isinstance(defense, DPSGD)), None)


def gradient_parts(clients: Mapping[int, tuple[PlacedCanaries, Tensor, Tensor]]) -> dict[str, CanaryPart]:
    """Parts of the gradient canaries of all clients: pooled, of each tensor, and those whose sign changes.

    Args:
        clients: Partition -> its canaries, scores (M,) over all rounds, and coins (M,). 0 lies between the scores of both coins.
    """
    held = [entry for entry in clients.values() if len(entry[0])]
    if not held:
        return {}
    scores, coins = torch.cat([entry[1] for entry in held]), torch.cat([entry[2] for entry in held])
    tensors, turns = torch.cat([entry[0].tensors() for entry in held]), torch.cat([entry[0].turns for entry in held])
    chosen = {ALL: torch.ones_like(turns), TURNING: turns}
    chosen |= {name: tensors == at for at, name in enumerate(held[0][0].sizes)}
    # Most faults are in all tensors: half of the error is for all canaries together.
    weights = {ALL: len(chosen) - 1.0}
    return {
        name: CanaryPart(scores[of], coins[of], centred=True, weight=weights.get(name, 1.0))
        for name, of in chosen.items()
        if of.any()
    }


def spread(sizes: Mapping[str, int], count: int, generator: torch.Generator) -> Tensor:
    """Draw ``count`` different weights, spread evenly over the tensors as far as their sizes allow: (M,) int64, ascending."""
    shares = _shares(list(sizes.values()), count)
    firsts = torch.tensor([0, *sizes.values()]).cumsum(0).tolist()
    return torch.cat(
        [
            first + torch.randperm(size, generator=generator)[:share].sort().values
            for first, size, share in zip(firsts, sizes.values(), shares, strict=False)
        ]
    )


def _shares(sizes: list[int], count: int) -> list[int]:
    """Canaries of each tensor: as many as of any other, or all weights of a small one."""
    shares, left = [0] * len(sizes), count
    for done, at in enumerate(sorted(range(len(sizes)), key=lambda at: sizes[at])):
        shares[at] = min(sizes[at], left // (len(sizes) - done))
        left -= shares[at]
    return shares


def set_gradients(model: nn.Module, weights: Tensor, values: Tensor) -> None:
    """Replace the gradients of canaries in a batch, between the backward pass and the step of DP-SGD.

    Args:
        model: Its parameters that are trained hold ``grad_sample`` (B, ...), the gradients per example that Opacus collects.
        weights: (B,) int64. Number of the only weight at which a canary's gradient is not 0, counted over the parameters that are
            trained, in their order; or ``NO_CANARY`` or ``EMPTY``.
        values: (B,) gradient at that weight; of other examples it is not read.

    Raises:
        AttackError: When the defence keeps no gradients per example.
    """
    canaries, first = weights != NO_CANARY, 0
    for parameter in (weight for weight in model.parameters() if weight.requires_grad):
        held = getattr(parameter, "grad_sample", None)
        if not isinstance(held, Tensor):
            raise AttackError("the defence keeps no gradients per example, so that no canary can be set")
        held[canaries.to(held.device)] = 0
        own = ((weights >= first) & (weights < first + parameter.numel())).nonzero().flatten()
        inside = torch.unravel_index(weights[own] - first, parameter.shape)
        held[(own.to(held.device), *(index.to(held.device) for index in inside))] = values[own].to(held)
        first += parameter.numel()
