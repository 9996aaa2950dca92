r"""What SiloBN costs: one training of a network with BatchNorm, judged with three kinds of running averages.

In train mode no layer reads running averages, so that weights learn the same with and without ``SiloBN()``: one federated training
(FedAvg over simulated clients, every client in every round) serves all three. Each client judges the final model on its own test
share with three averages: those that FedAvg makes, those of its own training images (``SiloBN``), and the initial ones. A server
without data has the initial ones under ``SiloBN``. Clients hold examples at random (``random``) or of few classes each
(``classes``); test shares are drawn at random in both.

    uv run python benchmarks/inversion/local_averages.py --seeds 0 1
"""

from __future__ import annotations

import argparse
import itertools
import json
import logging
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from attacks.local_model import shared_tensors
from clients.data.datasets import load_dataset
from clients.federated.client import LocalClient
from clients.federated.plan import FederatedPlan
from clients.task.local_data import LocalData
from defenses.updates.local_statistics import is_statistic

PLAN = FederatedPlan(
    scenario="federated", dataset="mnist-5k", data_dir="", download=False, image_size=0, train_limit=0, test_limit=0,
    model="convnet", width=4, norm="batch", pipeline="", seed=0, rounds=1, local_epochs=1, batch_size=16, learning_rate=0.1,
    momentum=0.0, weight_decay=0.0, probe_targets=1, probe_images=1,
)  # fmt: skip
CLIENTS = 4
ACCURACY = "test-accuracy-original"


def shares(split: str, seed: int, examples: int) -> list[list[int]]:
    """Training examples of each client."""
    labels = torch.as_tensor(load_dataset(PLAN.dataset).train.labels)
    drawn = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))[: CLIENTS * examples]
    if split == "classes":
        drawn = drawn[labels[drawn].argsort(stable=True)]
    return [part.tolist() for part in drawn.split(examples)]


def judged(clients: list[LocalClient], weights: Mapping[str, Tensor]) -> float:
    """Mean accuracy over clients, whose test shares have one size."""
    return sum(client.evaluate(weights)[ACCURACY] for client in clients) / len(clients)


def accuracies(split: str, seed: int, rounds: int, examples: int, tested: int) -> dict[str, float]:
    """Kind of running averages -> mean accuracy after the last round."""
    plan = replace(PLAN, seed=seed, rounds=rounds)
    parts = shares(split, seed, examples)
    tests = [range(at * tested, (at + 1) * tested) for at in range(CLIENTS)]

    def clients(pipeline: str, server_round: int) -> list[LocalClient]:
        mine = replace(plan, pipeline=pipeline).at(server_round)
        return [LocalClient(LocalData(mine, at, parts[at], tests[at])) for at in range(CLIENTS)]

    initial = {name: tensor.clone() for name, tensor in shared_tensors(plan.build_model()).items()}
    weights = dict(initial)
    for server_round in range(1, rounds + 1):
        updates = [client.train(weights, {}).updates[0] for client in clients("", server_round)]
        mean = {name: torch.stack([update[name] for update in updates]).mean(0) for name in weights}
        weights = {name: weight + mean[name] for name, weight in weights.items()}
    unmoved = {name: initial[name] if is_statistic(name) else weight for name, weight in weights.items()}
    return {
        "averaged": judged(clients("", rounds), weights),
        "own": judged(clients("SiloBN()", rounds), unmoved),
        "initial": judged(clients("", rounds), unmoved),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--examples", type=int, default=300, help="of each client")
    parser.add_argument("--tested", type=int, default=150, help="test examples of each client")
    parser.add_argument("--out", type=Path, default=Path("local_averages.jsonl"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    logging.disable(logging.INFO)
    for seed, split in itertools.product(options.seeds, ("random", "classes")):
        found = accuracies(split, seed, options.rounds, options.examples, options.tested)
        with options.out.open("a") as file:
            file.write(json.dumps({"split": split, "seed": seed, "rounds": options.rounds, **found}) + "\n")
        print(f"{split}, seed {seed}: " + ", ".join(f"{name} {100 * value:.1f} %" for name, value in found.items()))


if __name__ == "__main__":
    main()
