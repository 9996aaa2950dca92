"""Runs Flower's SecAgg+ for real and attacks what the server receives: single masked vectors, and the sum.

Each client takes one step of SGD on one digit and sends its parameters through ``secaggplus_mod``. The server runs
``SecAggPlusWorkflow``. Nodes live in this process, and every message takes Flower's wire format. The server attacks:

- ``assumed``: the exact mean of the clients' updates, as ``aggregate-clients`` computes it.
- ``fitted``: the protocol's mean with ``max_weight`` equal to a client's number of examples: the finest steps it can have.
- ``default``: the protocol's mean with Flower's defaults, ``max_weight`` 1000.
- ``masked``: the vector of the first client alone, as the server receives it, taken for its parameters.

Of each: the largest error of the mean update, that error in quantisation steps, and the smallest p-value of Kolmogorov-Smirnov
tests of the masked integers against the uniform distribution. Of each attack: the images that it recovers (30 dB), those that it
identifies (its guess is nearer to the image than to 99 others), and their mean PSNR.

    python benchmarks/flower_apps/secagg_plus.py --model mlp --clients 2 4 --seeds 0 1 2 3
"""

from __future__ import annotations

import argparse
import itertools
from copy import deepcopy
from typing import Any

import numpy as np
import torch
from flwr.app import Message
from scipy import stats
from secagg_private import masked_parameters, secagg_plus_app, secagg_plus_round
from torch import Tensor
from torch.nn import functional as F

from attacks import ClientUpdate, InvertingGradients, Reconstruction, SpearPlusPlus, optimal_assignment
from attacks.guesses import found_nothing
from attacks.image_measures import psnr
from attacks.observations import Aggregate
from clients.data.datasets import load_dataset
from clients.data.images import to_float
from clients.models.classifiers import build_model
from simulations.runtime.local_grid import LocalGrid

DATA, RATE, EXAMPLES = "mnist-5k", 0.1, 1
CLIPPING, TARGET, MODULUS = 8.0, 2**22, 2**32
"""Defaults of ``SecAggPlusWorkflow``: parameters are clipped to +-8 and rounded to 2^22 values; masks are modulo 2^32."""
WEIGHTS = {"fitted": float(EXAMPLES), "default": 1000.0}
CANDIDATES, RECOVERED = 99, 30.0
ATTACKS: dict[str, dict[str, Any]] = {
    "mlp": {"SpearPlusPlus": SpearPlusPlus()},
    "cnn": {"InvertingGradients": InvertingGradients(iterations=200)},
}
HEAD = (
    "model", "clients", "seed", "sum", "attacked", "error", "steps", "p", "attack", "recovered", "identified", "psnr", "failure",
)  # fmt: skip
Arrays = list[np.ndarray]


class Wire(LocalGrid):
    """Nodes of one round, and the masked vectors that crossed the wire, by node."""

    def __init__(self, clients: int, app: Any) -> None:
        super().__init__(clients, app=app)
        self.masked: dict[int, Arrays] = {}

    def answer(self, message: Message) -> Message | None:
        """A node's reply, whose masked vector is kept."""
        reply = super().answer(message)
        found = None if reply is None else masked_parameters(reply)
        if found is not None:
            self.masked[message.metadata.dst_node_id] = found
        return reply


class Round:
    """One round of some clients with a digit each: the model, the images, and each client's parameters after its step."""

    def __init__(self, name: str, clients: int, seed: int) -> None:
        self.data = load_dataset(DATA)
        part = self.data.test
        chosen = torch.randperm(len(part), generator=torch.Generator().manual_seed(seed))[: clients + CANDIDATES]
        images, labels = to_float(part.images[chosen]), part.labels[chosen]
        self.images, self.labels, self.others = images[:clients], labels[:clients], images[clients:]
        self.model = build_model(name, num_classes=10, input_shape=(1, 28, 28), seed=seed)
        self.start: Arrays = [value.detach().numpy() for value in self.model.parameters()]
        self.locals = [self.trained(at) for at in range(clients)]

    def trained(self, client: int) -> Arrays:
        """A client's parameters after one step on its image."""
        local = deepcopy(self.model)
        mean, std = (torch.tensor(values).view(-1, 1, 1) for values in (self.data.mean, self.data.std))
        own = slice(client, client + 1)
        F.cross_entropy(local((self.images[own] - mean) / std), self.labels[own]).backward()
        with torch.no_grad():
            return [(value - RATE * value.grad).numpy() for value in local.parameters() if value.grad is not None]

    def assumed(self) -> Arrays:
        """The exact mean of the clients' updates."""
        return [np.mean(same, 0) - start for *same, start in zip(*self.locals, self.start, strict=True)]

    def protocol(self, max_weight: float) -> tuple[Arrays, dict[int, Arrays]]:
        """The mean update of SecAgg+, and the masked vectors of the nodes."""
        grid = Wire(len(self.locals), secagg_plus_app(lambda client: (self.locals[client], EXAMPLES)))
        mean = secagg_plus_round(grid, self.start, num_shares=1.0, reconstruction_threshold=0.5, max_weight=max_weight)
        return [one - start for one, start in zip(mean, self.start, strict=True)], grid.masked

    def observation(self, update: Arrays, clients: int) -> ClientUpdate:
        """What the server attacks."""
        names = [name for name, _ in self.model.named_parameters()]
        return Aggregate(
            model=self.model,
            update={name: torch.from_numpy(np.asarray(one, np.float32)) for name, one in zip(names, update, strict=True)},
            input_shape=(1, 28, 28), mean=tuple(self.data.mean), std=tuple(self.data.std), num_examples=clients,
            batch_size=clients, local_steps=1, learning_rate=RATE, train_mode=False, num_clients=clients,
        )  # fmt: skip


def step_of(max_weight: float) -> float:
    """Largest error of one client's parameter by rounding: one step of the quantisation over the weight."""
    return 2 * CLIPPING / (TARGET - 1) * max_weight / EXAMPLES


def unmasked_guess(vector: Arrays, max_weight: float) -> Arrays:
    """The parameters that a masked vector (its weight first) would stand for if it had no mask."""
    return [(one * (2 * CLIPPING / TARGET) - CLIPPING) * max_weight / EXAMPLES for one in vector[1:]]


def uniformity(vector: Arrays) -> float:
    """p-value of a Kolmogorov-Smirnov test of the masked integers against the uniform distribution below the modulus."""
    whole = np.concatenate([one.ravel() for one in vector]) / MODULUS
    return float(stats.kstest(whole, "uniform").pvalue)


def scored(guess: Reconstruction, truth: Tensor, others: Tensor) -> dict[str, Any]:
    """Images recovered, identified, and the mean PSNR in dB, at most 100."""
    if found_nothing(guess):
        return {"recovered": 0, "identified": 0, "psnr": None, "failure": guess.failure}
    own, theirs = optimal_assignment(guess.images, truth)
    quality = psnr(guess.images[own], truth[theirs]).clamp(max=100)
    found = 0
    for one, true in zip(guess.images[own], truth[theirs], strict=True):
        found += int((one - true).square().mean() < (others - one).square().flatten(1).mean(1).min())
    return {
        "recovered": int((quality >= RECOVERED).sum()),
        "identified": found,
        "psnr": round(float(quality.mean()), 1),
        "failure": "",
    }


def measured(model: str, clients: int, seed: int) -> list[dict[str, Any]]:
    """The lines of one round, one for each kind of sum."""
    this = Round(model, clients, seed)
    exact = this.assumed()
    kinds: dict[str, tuple[Arrays, int, dict[str, Any]]] = {"assumed": (exact, clients, {})}
    for kind, weight in WEIGHTS.items():
        mean, masked = this.protocol(weight)
        error = max(float(np.abs(one - other).max()) for one, other in zip(mean, exact, strict=True))
        p = min(map(uniformity, masked.values()))
        kinds[kind] = (
            mean,
            clients,
            {"error": f"{error:.2g}", "steps": f"{error / step_of(weight):.2g}", "p": f"{p:.2g}"},
        )
        if kind == "fitted":
            alone = unmasked_guess(next(iter(masked.values())), weight)
            kinds["masked"] = ([one - start for one, start in zip(alone, this.start, strict=True)], 1, {})
    lines = []
    for kind, (update, count, numbers) in kinds.items():
        head = {"model": model, "clients": clients, "seed": seed, "sum": kind, "attacked": count}
        for name, attack in ATTACKS[model].items():
            (guess,) = attack.attack_many([this.observation(update, count)], [torch.Generator().manual_seed(seed)])
            lines.append(head | numbers | {"attack": name} | scored(guess, this.images[:count], this.others))
    return lines


def main() -> None:
    """Print a line for each model, number of clients, seed, kind of sum and attack."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", nargs="+", choices=list(ATTACKS), default=list(ATTACKS))
    parser.add_argument("--clients", nargs="+", type=int, default=[2, 4])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2, 3])
    given = parser.parse_args()
    torch.set_num_threads(1)
    print(f"| {' | '.join(HEAD)} |\n|{'---|' * len(HEAD)}", flush=True)
    for cell in itertools.product(given.model, given.clients, given.seeds):
        for line in measured(*cell):
            print(f"| {' | '.join(str(line.get(name, '-')) for name in HEAD)} |", flush=True)


if __name__ == "__main__":
    main()
