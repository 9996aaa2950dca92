"""Flower's ``LocalDpMod`` under canary clients: its epsilon, the exact one of its noise, and what the audit shows.

    PYTHONPATH=. python benchmarks/dp_audit/flower_local_dp.py --seeds 5

The real mod of the installed Flower acts on real messages. Each canary client replies with the received weights plus its canary,
which is 10 clipping norms long. The mod clips and adds noise. The score is the inner product with the direction, summed over the
rounds. Neighbours: a client's whole data set replaced by any other, which moves a clipped update by up to two clipping norms. The
claim is the mod's epsilon, which is for one message: over several rounds the table shows whether it holds for the run. "Basic
composition" is rounds times epsilon.

Exact: ``gaussian_epsilon`` at mu = 2 clipping_norm sqrt(rounds) / std. Beside it stands the exact epsilon of a client's update
against no change of the model ("zero-out"), at half of this mu; canaries do not test it. The mod's std is
sensitivity sqrt(2 ln(1.25 / delta)) / epsilon, a formula that is proved for an epsilon below 1 (Dwork and Roth 2014, Theorem A.1).
An array without dimensions gets no clipping and no noise: Flower changes arrays in place, and NumPy makes such an array a plain
number. No finite epsilon holds then.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any, cast

import numpy as np
import torch
from flower_audits import CLIPPING, CONFIDENCE, DELTA, print_table, record_of
from flwr.app import Context, Message, RecordDict
from flwr.clientapp.mod import LocalDpMod

from attacks.dp_audit.canary_clients import NORM, PlacedClient, parts_of
from attacks.dp_audit.verdict import Audit, audited
from defenses.random_draws import generator_for
from defenses.smashed.gaussian_mechanism import gaussian_epsilon
from defenses.tensors import Update

SHAPES: Mapping[str, tuple[int, ...]] = {"weight": (8, 16), "bias": (8,)}
SCALAR: Mapping[str, tuple[int, ...]] = {**SHAPES, "temperature": ()}


@dataclass(frozen=True)
class Setting:
    """One configuration of the mod.

    Attributes:
        sensitivity: In clipping norms.
        epsilon: The mod's, for one message.
        rounds: Messages of each client.
        clients: Canary clients.
        scalar: The model has an array without dimensions.
    """

    sensitivity: float
    epsilon: float
    rounds: int = 1
    clients: int = 3000
    scalar: bool = False

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Tensors of an update."""
        return SCALAR if self.scalar else SHAPES

    @property
    def exact(self) -> float:
        """The exact epsilon of all rounds; infinite with an array without dimensions."""
        return self._exact(2.0)

    @property
    def exact_zero_out(self) -> float:
        """The exact epsilon of all rounds for a client's update against no change of the model."""
        return self._exact(1.0)

    def _exact(self, distance: float) -> float:
        """Of two updates this far apart, in clipping norms."""
        if self.scalar:
            return math.inf
        std = self.sensitivity * math.sqrt(2 * math.log(1.25 / DELTA)) / self.epsilon
        return gaussian_epsilon(distance * math.sqrt(self.rounds) / std, DELTA)


SETTINGS = (
    Setting(2.0, 1.0),
    Setting(1.0, 1.0),
    Setting(2.0, 1.0, rounds=4, clients=2000),
    Setting(1.0, 1.0, rounds=4, clients=1000),
    Setting(2.0, 20.0, clients=1000),
    Setting(1.0, 10.0, clients=1000),
    Setting(2.0, 1.0, clients=300, scalar=True),
)


def audit(setting: Setting, seed: int) -> Audit:
    """Canary clients behind the real mod."""
    np.random.seed(seed)  # the mod draws from NumPy's global generator
    mod = LocalDpMod(CLIPPING, setting.sensitivity * CLIPPING, setting.epsilon, DELTA)
    generator = torch.Generator().manual_seed(seed)
    weights = {name: torch.randn(shape, generator=generator).numpy() for name, shape in setting.shapes.items()}
    received = Message(RecordDict({"arrays": record_of(weights)}), dst_node_id=1, message_type="train")
    context = cast(Context, None)  # the mod hands it on and reads nothing of it

    def release(update: Update) -> Update:
        def trained(message: Message, _: Context) -> Message:
            moved = record_of({name: np.asarray(weights[name] + update[name].numpy()) for name in weights})
            return Message(RecordDict({"arrays": moved}), reply_to=message)

        sent: Any = mod(received, context, trained).content["arrays"]
        return {name: torch.from_numpy(np.asarray(array.numpy() - weights[name])) for name, array in sent.items()}

    coins = torch.rand(setting.clients, generator=generator_for("canary clients", seed, "coins")) < 0.5
    placed = [PlacedClient.of(setting.shapes, seed, at) for at in range(setting.clients)]
    scores = torch.zeros(setting.clients, len(setting.shapes), dtype=torch.float64)
    for at, client in enumerate(placed):
        for number in range(1, setting.rounds + 1):
            sent = release(client.update(bool(coins[at]), NORM * CLIPPING, number))
            scores[at] += client.scores(sent, number)
    turns = torch.tensor([client.turns for client in placed])
    parts = parts_of(dict(zip(setting.shapes, scores.T, strict=True)), coins, turns)
    return audited(parts, setting.epsilon, DELTA, CONFIDENCE)


def facts(setting: Setting, _first: Audit) -> tuple[str, ...]:
    """Cells before the bounds."""
    scalar = ", and one array without dimensions" if setting.scalar else ""
    return (
        f"sensitivity {setting.sensitivity:g} x clipping norm{scalar}",
        *(str(setting.rounds), f"{setting.epsilon:g}", f"{setting.rounds * setting.epsilon:g}"),
        *("none" if math.isinf(one) else f"{one:.2f}" for one in (setting.exact, setting.exact_zero_out)),
        str(setting.clients),
    )


if __name__ == "__main__":
    print_table(
        f"Flower {version('flwr')}, delta {DELTA:g}",
        (
            "setting",
            "rounds",
            "claimed a message",
            "basic composition",
            "exact",
            "exact, zero-out",
            "canary clients",
        ),
        SETTINGS,
        audit,
        facts,
    )
