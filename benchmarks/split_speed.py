"""Split training over Flower beside the same model trained in one process: samples per second, and bytes per sample.

Both train the same halves on the same data, one after the other in each repeat, so that other work on the machine slows both. The
split run is a real `fedveil run` with Ray clients and no attacks, without its first round, in which Ray's workers read the data.

    python benchmarks/split_speed.py --batches-per-message 1 4 16 --repeats 3
    python benchmarks/split_speed.py --train-edge
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional as F

from attacks.normalisation import normalise
from clients.data.card import DataCard
from clients.split.plan import SplitPlan, build_optimizer
from clients.task.batches import local_batch
from simulations.experiment.experiment import Experiment
from simulations.report.studies.rows import read_rows

GOAL = 0.5
SETTINGS: dict[str, Any] = {
    "scenario": "split", "dataset": "mnist-5k", "model": "vit", "width": 64, "patch-size": 4, "depth": 5, "heads": 4,
    "batch-size": 32, "optimizer": "sgd", "learning-rate": 0.05, "momentum": 0.9, "num-clients": 4, "rounds": 3,
    "local-epochs": 1, "test-limit": 100, "defenses": "", "attack-rounds": "", "attack-workers": 0,
}  # fmt: skip


def over_flower(settings: dict[str, Any]) -> tuple[float, float]:
    """Samples per second of the rounds after the first, and bytes that a client sends for each."""
    changes = [part for key, value in settings.items() for part in ("-s", f"{key}={value}")]
    with tempfile.TemporaryDirectory() as folder:
        command = [str(Path(sys.executable).with_name("fedveil")), "run", "--out", f"{folder}/run", *changes]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        rows, _ = read_rows(Path(folder) / "run" / "rows.jsonl")
    speeds = [row.value for row in rows if row.metric == "samples-per-second" and row.round > 1]
    sizes = [row.value for row in rows if row.metric == "bytes-per-sample"]
    return statistics.mean(speeds), sizes[0]


def one_process(settings: dict[str, Any], examples: int) -> float:
    """Samples per second of a plain loop over so many examples, after a warm-up of a tenth of them."""
    experiment = Experiment.of(**{key.replace("-", "_"): value for key, value in settings.items()})
    plan = SplitPlan.narrow(experiment.plan())
    data = plan.load_data()
    plan = replace(plan, card=DataCard.of(data))
    edge, server = plan.build_halves()
    edge.requires_grad_(plan.trains_edge)
    trained = [*server.parameters(), *(edge.parameters() if plan.trains_edge else ())]
    optimizer = build_optimizer(plan, [{"params": trained, "lr": experiment.learning_rate}])

    def train(count: int) -> float:
        start = time.perf_counter()
        for rows in torch.randperm(len(data.train))[:count].split(plan.batch_size):
            batch = local_batch(data.train, rows, data.num_classes)
            loss = F.cross_entropy(server(edge(normalise(batch.images, plan.data_card()))), batch.targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        return count / (time.perf_counter() - start)

    train(examples // 10)
    return train(examples)


def main() -> None:
    """Print both speeds and their ratio."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batches-per-message", type=int, nargs="+", default=[1, 4, 16])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--train-edge", action="store_true")
    parser.add_argument("--examples", type=int, default=3200, help="of the loop in one process; the data set has 4,000")
    arguments = parser.parse_args()
    shown = ", ".join(f"{key} {value}" for key, value in SETTINGS.items() if value != "")
    print(f"{shown}, trained edge: {arguments.train_edge}; {torch.get_num_threads()} threads in one process")
    for count in arguments.batches_per_message:
        settings = SETTINGS | {"batches-per-message": count, "train-edge": arguments.train_edge}
        ratios = []
        for _ in range(arguments.repeats):
            plain = one_process(settings, arguments.examples)
            split, size = over_flower(settings)
            ratios.append(split / plain)
            print(
                f"  K = {count:2d}: {split:6.0f} samples/s over Flower, {plain:6.0f} in one process, {size:.0f} bytes/sample"
            )
        middle, reached = statistics.median(ratios), "reached" if statistics.median(ratios) >= GOAL else "missed"
        spread = f"{min(ratios):.2f} to {max(ratios):.2f}, n = {len(ratios)}"
        print(f"K = {count:2d}: median ratio {middle:.2f} ({spread}); goal {GOAL} {reached}")


if __name__ == "__main__":
    main()
