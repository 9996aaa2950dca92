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
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from attacks.dp_audit.placed_canaries import TURNING
from attacks.dp_audit.verdict import ALL, Audit, CanaryPart, audited
from defenses.pipeline import Pipeline
from defenses.random_draws import generator_for
from defenses.tensors import NamedTensors, Shape, Tensors, Update
from defenses.updates.client_dp import ClientDP
from defenses.updates.flower_mods import FlowerLocalDP

SHAPES: Mapping[str, Shape] = {"0.weight": (24, 16), "0.bias": (24,), "2.weight": (8, 24), "2.bias": (8,)}
"""Tensors of the update of a small network: 608 weights. How well a coin is guessed does not depend on their number."""
NORM = 10.0
"""Length of a canary's update before clipping, in clipping norms: above 1, so that missing clipping shows."""


def directions(shapes: Mapping[str, Shape], count: int, generator: torch.Generator) -> Tensors:
    """Random directions of length 1, each as long in every tensor as in the others: name -> (count, weights), float64.

    A tensor without noise, or one that is clipped apart from the others, then shows as clearly as any other.
    """
    drawn = {
        name: torch.randn(count, math.prod(shape), generator=generator, dtype=torch.float64)
        for name, shape in shapes.items()
    }
    return {name: found / found.norm(dim=1, keepdim=True) / len(drawn) ** 0.5 for name, found in drawn.items()}


@dataclass(frozen=True)
class PlacedClient:
    """The public part of one canary client: all but its coin.

    Attributes:
        along: Name of each tensor -> the client's direction there, of the tensor's shape, float64; of length 1 in all.
        turns: The sign of its update changes in every second round.
    """

    along: NamedTensors
    turns: bool

    @classmethod
    def of(cls, shapes: Mapping[str, Shape], seed: int, partition: int) -> PlacedClient:
        """Draw the direction of a client, of tensors with these names and shapes; ``seed`` is the run's."""
        generator = generator_for("canary client", seed, partition)
        filled = {name: shape for name, shape in shapes.items() if math.prod(shape)}
        drawn = directions(filled, 1, generator)
        turns = bool(torch.rand((), generator=generator) < 0.5)
        return cls({name: drawn[name].view(shape) for name, shape in filled.items()}, turns)

    def update(self, coin: bool, length: float, server_round: int) -> Update:
        """What the client hands to its defence in a round; float32."""
        signed = length * self._sign(server_round) * (1 if coin else -1)
        return {name: (signed * tensor).float() for name, tensor in self.along.items()}

    def scores(self, update: Update, server_round: int) -> Tensor:
        """Inner product of an update with the direction of a coin of 1, by tensor: (number of tensors,), float64."""
        found = [(update[name].double() * tensor).sum() for name, tensor in self.along.items()]
        return self._sign(server_round) * torch.stack(found)

    def _sign(self, server_round: int) -> int:
        return -1 if self.turns and server_round % 2 == 0 else 1


def client_defense(pipeline: Pipeline) -> ClientDP | FlowerLocalDP | None:
    """The client-level defence of a pipeline, whose claim canary clients can test; None without one."""
    return next((one for one in pipeline.defenses if isinstance(one, ClientDP | FlowerLocalDP)), None)


Release = Callable[[Update, int, int], Update]
"""(update, number of the client, number of the round from 1) -> the update as the client sends it."""


def client_parts(
    release: Release, shapes: Mapping[str, Shape], *, clients: int, rounds: int, length: float, seed: int
) -> dict[str, CanaryPart]:
    """Let canary clients send their updates in all rounds, and score their coins.

    Args:
        release: The audited mechanism; it may keep accounts by client.
        shapes: Name of each tensor of an update -> its shape; none empty.
        clients: Number of canary clients, one coin each, at least 1.
        rounds: At least 1.
        length: Of a canary's update before the mechanism, in its unit; above 0.
        seed: Of directions and coins.

    Returns:
        Views of what was sent: all tensors together, each tensor, and the clients that change the sign of their update in every
        second round. Noise that is reused over rounds cancels from the scores of these.
    """
    if clients < 1 or rounds < 1 or not length > 0:
        raise ValueError(
            f"clients is {clients}, rounds is {rounds} and length is {length!r}; allowed: 1 or more of each, and a length above 0"
        )
    coins = torch.rand(clients, generator=generator_for("canary clients", seed, "coins")) < 0.5
    turns = torch.rand(clients, generator=generator_for("canary clients", seed, "turns")) < 0.5
    along = directions(shapes, clients, generator_for("canary clients", seed, "directions"))
    scores = {name: torch.zeros(clients, dtype=torch.float64) for name in shapes}
    signs = torch.where(coins, length, -length)
    for server_round in range(1, rounds + 1):
        turned = torch.where(turns & (server_round % 2 == 0), -1.0, 1.0)
        given = {name: ((signs * turned)[:, None] * found).float() for name, found in along.items()}
        for client in range(clients):
            update = {name: given[name][client].view(shape) for name, shape in shapes.items()}
            for name, value in release(update, client, server_round).items():
                scores[name][client] += turned[client] * (value.flatten().double() @ along[name][client])
    return parts_of(scores, coins, turns)


def parts_of(scores: NamedTensors, coins: Tensor, turns: Tensor) -> dict[str, CanaryPart]:
    """Views of canary clients, from the scores (M,) of each tensor over all rounds, the coins (M,) and who turns (M,)."""
    total = torch.stack(list(scores.values())).sum(0)
    # Most faults are in all tensors: half of the error is for all of them together.
    parts = {ALL: CanaryPart(total, coins, centred=True, weight=float(len(scores) + 1))}
    if turns.any():
        parts[TURNING] = CanaryPart(total[turns], coins[turns], centred=True)
    return parts | {name: CanaryPart(of, coins, centred=True) for name, of in scores.items()}


def audit_client_dp(
    defense: ClientDP,
    *,
    clients: int = 1000,
    rounds: int = 4,
    norm: float = NORM,
    confidence: float = 0.95,
    seed: int = 0,
) -> Audit:
    """Bound the epsilon of a ``ClientDP`` from below, by canary clients whose updates the defence itself clips, noises and records.

    Args:
        defense: The audited defence, or a subclass.
        clients: Number of canary clients, at least 1.
        rounds: Rounds, in each of which every client sends an update, at least 1; the account covers them all.
        norm: Length of a canary's update in clipping norms, above 0. Above 1, missing clipping shows.
        confidence: With which both bounds of the result hold together, in (0, 1).
        seed: Of directions, coins and the defence's draws.

    Returns:
        The claim and the bounds, both client-level.
    """
    pipeline, states = Pipeline((defense,)), dict[int, dict[str, Any]]()

    def release(update: Update, client: int, server_round: int) -> Update:
        states[client] = pipeline.recorded(states.get(client, {}))
        return pipeline.protect_update(update, ("dp-audit", seed, "train", server_round, client))

    parts = client_parts(release, SHAPES, clients=clients, rounds=rounds, length=norm * defense.max_norm, seed=seed)
    privacy = pipeline.privacy(states[0])
    return audited(parts, privacy["epsilon"], privacy["delta"], confidence)
