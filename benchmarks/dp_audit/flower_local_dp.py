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

import argparse
import logging
import math
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any, cast

import numpy as np
import torch
from audit_cells import spread
from flwr.app import Array, ArrayRecord, Context, Message, RecordDict
from flwr.clientapp.mod import LocalDpMod

from attacks.dp_audit.canary_clients import NORM, client_parts
from attacks.dp_audit.verdict import Audit, audited
from attacks.scoring.roc import binomial_interval
from clients.flower_private import act_as_task
from defenses.base import Update
from defenses.smashed.gaussian_mechanism import gaussian_epsilon

DELTA, CONFIDENCE, CLIPPING = 1e-5, 0.95, 1.0
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

    def release(update: Update, _client: int, _round: int) -> Update:
        def trained(message: Message, _: Context) -> Message:
            moved = record_of({name: np.asarray(weights[name] + update[name].numpy()) for name in weights})
            return Message(RecordDict({"arrays": moved}), reply_to=message)

        sent: Any = mod(received, context, trained).content["arrays"]
        return {name: torch.from_numpy(np.asarray(array.numpy() - weights[name])) for name, array in sent.items()}

    parts = client_parts(
        release, setting.shapes, clients=setting.clients, rounds=setting.rounds, length=NORM * CLIPPING, seed=seed
    )
    return audited(parts, setting.epsilon, DELTA, CONFIDENCE)


def record_of(arrays: Mapping[str, Any]) -> ArrayRecord:
    """Arrays as a message carries them."""
    return ArrayRecord({name: Array(array) for name, array in arrays.items()})


def line(setting: Setting, seeds: int) -> str:
    """One row of the table."""
    found = [audit(setting, seed) for seed in range(seeds)]
    refuted = sum(one.refuted for one in found)
    plainly = sum(one.shown.epsilon > one.claimed for one in found)
    _, low, high = binomial_interval(refuted, len(found))
    by = Counter(part for one in found for part in one.refuted_by)
    scalar = ", and one array without dimensions" if setting.scalar else ""
    cells = (
        f"sensitivity {setting.sensitivity:g} x clipping norm{scalar}",
        *(str(setting.rounds), f"{setting.epsilon:g}", f"{setting.rounds * setting.epsilon:g}"),
        *("none" if math.isinf(one) else f"{one:.2f}" for one in (setting.exact, setting.exact_zero_out)),
        *(str(setting.clients), str(len(found))),
        spread([one.shown.epsilon for one in found]),
        spread([one.shown_gaussian.epsilon for one in found]),
        *(f"{refuted} ({100 * low:.0f} to {100 * high:.0f} %)", str(plainly)),
        ", ".join(f"{part} ({count})" for part, count in by.most_common(2)) or "none",
    )
    return f"| {' | '.join(cells)} |"


def main() -> None:
    """Print the table and the time."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=5, help="audits of each setting")
    parser.add_argument(
        "--settings", type=int, nargs="+", default=range(len(SETTINGS)), help="lines of SETTINGS, from 0"
    )
    chosen = parser.parse_args()
    logging.getLogger("flwr").setLevel(logging.ERROR)
    torch.set_num_threads(1)
    act_as_task()
    started = time.perf_counter()
    print(f"Flower {version('flwr')}, delta {DELTA:g}\n")
    print(
        "| setting | rounds | claimed a message | basic composition | exact | exact, zero-out | canary clients | audits | "
        "shown, no assumption | shown, Gaussian | refuted (95 % interval) | refuted without an assumption | by |"
    )
    print(f"|{'---|' * 13}")
    for number in chosen.settings:
        print(line(SETTINGS[number], chosen.seeds), flush=True)
    print(f"\n{time.perf_counter() - started:.0f} s")


if __name__ == "__main__":
    main()
