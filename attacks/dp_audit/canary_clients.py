"""Audit of client-level differential privacy by canary clients: lower bounds of epsilon from what clients send.

A canary client sends an update that the auditor chose: a direction of its own, or its negative, by a fair coin. The direction is
random and public, as long as a client may reach after clipping, and far longer before it. The coin stays the same in all rounds.
The auditor sees every released update, as the server does, and guesses the coin from the inner product with the direction. The
inner product has the sign of the cosine that Andrew et al. use, whose canaries are such directions, too. Their canary is present or
absent. Here the coin decides between the direction and its negative: the neighbours are two arbitrary data sets of a client.

Source: Andrew, Kairouz, Oh, Oprea, McMahan, Suriyakumar, "One-shot Empirical Privacy Estimation for Federated Learning", ICLR 2024
(arXiv 2302.03098), for the directions; bounds with a confidence replace their estimate, which has none.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from attacks.dp_audit.placed_canaries import TURNING
from attacks.dp_audit.verdict import ALL, CanaryPart
from defenses.pipeline import Pipeline
from defenses.random_draws import generator_for
from defenses.tensors import NamedTensors, Shape, Update
from defenses.updates.client_dp import ClientDP
from defenses.updates.flower_mods import FlowerLocalDP

NORM = 10.0
"""Length of a canary's update before clipping, in clipping norms: above 1, so that missing clipping shows."""


@dataclass(frozen=True)
class PlacedClient:
    """The public part of one canary client: all but its coin.

    Attributes:
        along: Name of each tensor -> the client's direction there, of the tensor's shape, float64; of length 1 in all. It is as
            long in every tensor, so that a tensor without noise, or one that is clipped for itself, shows as clearly as others.
        turns: The sign of its update changes in every second round.
    """

    along: NamedTensors
    turns: bool

    @classmethod
    def of(cls, shapes: Mapping[str, Shape], seed: int, partition: int) -> PlacedClient:
        """Draw the direction of a client, of tensors with these names and shapes; ``seed`` is the run's."""
        generator = generator_for("canary client", seed, partition)
        filled = {name: shape for name, shape in shapes.items() if math.prod(shape)}
        drawn = {name: torch.randn(shape, generator=generator, dtype=torch.float64) for name, shape in filled.items()}
        turns = bool(torch.rand((), generator=generator) < 0.5)
        return cls({name: tensor / tensor.norm() / len(drawn) ** 0.5 for name, tensor in drawn.items()}, turns)

    def update(self, coin: bool, length: float, server_round: int) -> Update:
        """What the client hands to its defence in a round; float32."""
        signed = length * self._sign(server_round) * (1 if coin else -1)
        return {name: (signed * tensor).float() for name, tensor in self.along.items()}

    def scores(self, update: Update, server_round: int) -> Tensor:
        """Inner product of an update with the direction of a coin of 1, by tensor: (number of tensors,), float64."""
        products = [(update[name].double() * tensor).sum() for name, tensor in self.along.items()]
        return self._sign(server_round) * torch.stack(products)

    def _sign(self, server_round: int) -> int:
        return -1 if self.turns and server_round % 2 == 0 else 1


def client_defense(pipeline: Pipeline) -> ClientDP | FlowerLocalDP | None:
    """The client-level defence of a pipeline, whose claim canary clients can test; None without one."""
    return next((defense for defense in pipeline.defenses if isinstance(defense, ClientDP | FlowerLocalDP)), None)


def parts_of(scores: NamedTensors, coins: Tensor, turns: Tensor) -> dict[str, CanaryPart]:
    """Views of canary clients, from the scores (M,) of each tensor over all rounds, the coins (M,) and who turns (M,)."""
    total = torch.stack(list(scores.values())).sum(0)
    # Most faults are in all tensors: half of the error is for all of them together.
    parts = {ALL: CanaryPart(total, coins, centred=True, weight=float(len(scores) + 1))}
    if turns.any():
        parts[TURNING] = CanaryPart(total[turns], coins[turns], centred=True)
    return parts | {name: CanaryPart(of, coins, centred=True) for name, of in scores.items()}
