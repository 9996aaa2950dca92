"""Flower's strategies for central differential privacy under canary clients: what the model that the server publishes shows.

    PYTHONPATH=. python benchmarks/dp_audit/flower_central_dp.py --seeds 5

The real strategies of the installed Flower wrap its real FedAvg. They configure a round and aggregate real replies. Each canary
client replies with the received weights plus a canary of 10 clipping norms, or its negative, by a coin. With client-side clipping
the real mod of the client acts on this reply, by the norm in the strategy's message. The clients of a round have orthonormal
directions, so that no canary disturbs another. The score is the inner product of the direction with the change of the
released model.

Claimed: epsilon of the Gaussian mechanism with the strategy's noise multiplier, for one client added or removed, by fedveil's Renyi
accounting. Flower's accountant states this number; it did not run here, because it needs dp-accounting. Exact: epsilon of the same
mechanism for one client replaced by another, from the largest distance of two aggregates over the noise that the strategy adds.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any, cast

import numpy as np
import torch
from flower_audits import CLIPPING, CONFIDENCE, DELTA, print_table, record_of
from flwr.app import ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp.mod import adaptiveclipping_mod, fixedclipping_mod
from flwr.serverapp import Grid
from flwr.serverapp.strategy import (
    DifferentialPrivacyClientSideAdaptiveClipping,
    DifferentialPrivacyClientSideFixedClipping,
    DifferentialPrivacyServerSideAdaptiveClipping,
    DifferentialPrivacyServerSideFixedClipping,
    FedAvg,
)

from attacks.dp_audit.canary_clients import NORM
from attacks.dp_audit.verdict import ALL, Audit, CanaryPart, audited
from defenses.random_draws import generator_for
from defenses.smashed.gaussian_mechanism import gaussian_epsilon
from defenses.training.accounting import epsilon_spent

NOISE, SIDE, USUAL = 2.0, 16, 10
"""``NOISE``: noise multiplier of every strategy. ``SIDE``: the model is one square matrix. ``USUAL``: examples of a client."""
RATE = 1.0
"""Learning rate of the adaptive clipping norm."""


def fixed(clients: int) -> Any:
    """The strategy with a fixed clipping norm."""
    return DifferentialPrivacyServerSideFixedClipping(averaging(clients), NOISE, CLIPPING, clients)


def adaptive(clients: int) -> Any:
    """The strategy with an adaptive clipping norm, which starts at the same value."""
    return DifferentialPrivacyServerSideAdaptiveClipping(
        averaging(clients), NOISE, clients, initial_clipping_norm=CLIPPING, clip_norm_lr=RATE
    )


def fixed_at_clients(clients: int) -> Any:
    """The strategy whose clients clip by the norm that it sends."""
    return DifferentialPrivacyClientSideFixedClipping(averaging(clients), NOISE, CLIPPING, clients)


def adaptive_at_clients(clients: int) -> Any:
    """The strategy whose clients clip by the norm that it adapts, which starts at the same value."""
    return DifferentialPrivacyClientSideAdaptiveClipping(
        averaging(clients), NOISE, clients, initial_clipping_norm=CLIPPING, clip_norm_lr=RATE
    )


def averaging(clients: int) -> FedAvg:
    """Flower's average over all clients."""
    return FedAvg(min_train_nodes=clients, min_available_nodes=clients)


@dataclass(frozen=True)
class Setting:
    """A strategy and its clients.

    Attributes:
        title: In words.
        build: Number of clients -> strategy.
        distance: Of two aggregates that differ in one client, over the noise, in units of 2 / noise multiplier.
        clients: Of a round.
        runs: Rounds, each with a strategy of its own.
        examples: That the first client reports; others report ``USUAL``. With another number only the first is a canary.
        scalar: The model has an array without dimensions, in which only the first client's canary lies.
        mod: Clips at the client; None where the server clips.
    """

    title: str
    build: Callable[[int], Any]
    distance: float
    clients: int = 50
    runs: int = 20
    examples: int = USUAL
    scalar: bool = False
    mod: Callable[..., Message] | None = None

    @property
    def one(self) -> bool:
        """Only the first client is a canary."""
        return self.scalar or self.examples != USUAL


def _adaptive_distance() -> float:
    """Noise is scaled by the norm after its update; all updates were clipped, by the norm before. The count costs noise as well."""
    effective = (NOISE**-2 - (2 * 50 / 20) ** -2) ** -0.5
    return NOISE / effective * math.exp(RATE * (1 - 0.5))


HEAVY = 20 * USUAL
SETTINGS = (
    Setting("fixed clipping, equal numbers of examples", fixed, 1.0),
    Setting(
        "fixed clipping, one client of 10 reports 20 times as many examples",
        *(fixed, 10 * HEAVY / (HEAVY + 9 * USUAL), 10, 200, HEAVY),
    ),
    Setting("fixed clipping, one array without dimensions", fixed, NORM, 10, 200, scalar=True),
    Setting("adaptive clipping, learning rate 1, all updates clipped", adaptive, _adaptive_distance()),
    Setting("client-side fixed clipping, equal numbers of examples", fixed_at_clients, 1.0, mod=fixedclipping_mod),
    Setting(
        "client-side fixed clipping, one array without dimensions",
        *(fixed_at_clients, NORM, 10, 200),
        scalar=True,
        mod=fixedclipping_mod,
    ),
    Setting(
        "client-side adaptive clipping, learning rate 1, all updates clipped",
        *(adaptive_at_clients, _adaptive_distance()),
        mod=adaptiveclipping_mod,
    ),
)


class _Nodes:
    """The part of a grid that configures a round."""

    def __init__(self, count: int) -> None:
        self._count = count

    def get_node_ids(self) -> list[int]:
        return list(range(1, self._count + 1))


def one_round(setting: Setting, seed: int, run: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Scores and coins of the canary clients of one round."""
    generator = generator_for("central", seed, run)
    weights: dict[str, Any] = {"weight": torch.randn(SIDE, SIDE, generator=generator).numpy()}
    along = torch.linalg.qr(torch.randn(SIDE**2, setting.clients, generator=generator)).Q.T.view(-1, SIDE, SIDE).numpy()
    coins = torch.rand(setting.clients, generator=generator) < 0.5
    if setting.scalar:
        weights["temperature"] = np.array(1.0, dtype=np.float32)
    sent = record_of(weights)
    strategy = setting.build(setting.clients)
    messages = list(strategy.configure_train(1, sent, ConfigRecord(), cast(Grid, _Nodes(setting.clients))))
    replies = []
    for client, message in enumerate(messages):
        length = NORM * CLIPPING * (1 if coins[client] else -1)
        moved = dict(weights)
        if setting.scalar and client == 0:
            moved["temperature"] = np.asarray(weights["temperature"] + np.float32(length))
        else:
            moved["weight"] = weights["weight"] + length * along[client]
        numbers = MetricRecord({"num-examples": setting.examples if client == 0 else USUAL})
        reply = Message(RecordDict({"arrays": record_of(moved), "metrics": numbers}), reply_to=message)
        if setting.mod:
            reply = setting.mod(message, cast(Context, None), _answering(reply))
        replies.append(reply)
    arrays, _ = strategy.aggregate_train(1, replies)
    released = {name: array.numpy() - weights[name] for name, array in arrays.items()}
    if setting.scalar:
        scores = torch.tensor([float(released["temperature"])], dtype=torch.float64)
    else:
        scores = torch.tensor(np.tensordot(along, released["weight"], 2), dtype=torch.float64)
    return (scores[:1], coins[:1]) if setting.one else (scores, coins)


def _answering(reply: Message) -> Callable[[Message, Context], Message]:
    """An app that gives this reply."""
    return lambda _message, _context: reply


def audit(setting: Setting, seed: int) -> Audit:
    """The audit of all rounds, each with other clients."""
    np.random.seed(seed)  # the strategies draw from NumPy's global generator
    found = [one_round(setting, seed, run) for run in range(setting.runs)]
    scores, coins = (torch.cat([pair[at] for pair in found]) for at in (0, 1))
    claimed = epsilon_spent({"accountant": {"steps": [[NOISE, 1.0, 1]]}}, DELTA)
    return audited({ALL: CanaryPart(scores, coins, centred=True)}, claimed, DELTA, CONFIDENCE)


def facts(setting: Setting, first: Audit) -> tuple[str, ...]:
    """Cells before the bounds."""
    exact = gaussian_epsilon(2 * setting.distance / NOISE, DELTA)
    return setting.title, f"{first.claimed:.2f}", f"{exact:.2f}", str(first.by_part[ALL][0].canaries)


if __name__ == "__main__":
    print_table(
        f"Flower {version('flwr')}, noise multiplier {NOISE:g}, one round, delta {DELTA:g}",
        ("strategy", "claimed, one client added or removed", "exact, one client replaced", "canary clients"),
        SETTINGS,
        audit,
        facts,
    )
