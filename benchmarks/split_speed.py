"""Split training over Flower beside the same model trained in one process: samples per second, and bytes per sample.

Both train the same halves on the same data, one after the other in each repeat, so that what else runs on the machine hits both.
The split run is a real `fedveil run` with Ray clients and no attacks; its first round is left out, because Ray's workers read the
data in it. One process uses all cores.

    python benchmarks/split_speed.py --batches-per-message 1 4 16 --repeats 3
    python benchmarks/split_speed.py --train-edge
"""

from __future__ import annotations

import argparse
import json
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


def settings(arguments: argparse.Namespace, batches_per_message: int) -> Experiment:
    """The run that is timed."""
    return Experiment.of(
        experiment="split-speed",
        scenario="split",
        dataset="mnist-5k",
        batch_size=32,
        model=arguments.model,
        width=arguments.width,
        patch_size=arguments.patch_size,
        depth=arguments.depth,
        heads=4,
        train_edge=arguments.train_edge,
        optimizer="sgd",
        learning_rate=0.05,
        momentum=0.9,
        num_clients=arguments.clients,
        rounds=3,
        local_epochs=1,
        test_limit=100,
        batches_per_message=batches_per_message,
        defenses="",
        attack_rounds="",
        attack_workers=0,
    )


def changed(experiment: Experiment) -> dict[str, Any]:
    """The scenario, and the settings that are not its usual ones."""
    usual = Experiment.of(scenario=experiment.scenario).to_mapping() | {"scenario": ""}
    return {key: value for key, value in experiment.to_mapping().items() if value != usual[key]}


def over_flower(experiment: Experiment) -> tuple[float, float]:
    """Samples per second of the rounds after the first, and bytes that a client sends for each."""
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "speed.toml"
        config.write_text("".join(f"{key} = {json.dumps(value)}\n" for key, value in changed(experiment).items()))
        output = Path(folder) / "run"
        command = [
            str(Path(sys.executable).with_name("fedveil")),
            "run",
            str(config),
            "--out",
            str(output),
            "--clients",
            str(experiment.num_clients),
        ]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        rows, _ = read_rows(output / "rows.jsonl")
    speeds = [row.value for row in rows if row.metric == "samples-per-second" and row.round > 1]
    sizes = [row.value for row in rows if row.metric == "bytes-per-sample"]
    return statistics.mean(speeds), sizes[0]


def one_process(experiment: Experiment, examples: int) -> float:
    """Samples per second of a plain loop over the same number of examples, after a warm-up of a tenth of them."""
    plan = SplitPlan.narrow(experiment.plan())
    data = plan.load_data()
    plan = replace(plan, card=DataCard.of(data))
    edge, server = plan.build_halves()
    edge.requires_grad_(plan.trains_edge)
    trained = [*server.parameters(), *(edge.parameters() if plan.trains_edge else ())]
    optimizer = build_optimizer(plan, [{"params": trained, "lr": experiment.learning_rate}])

    def train(count: int) -> None:
        if count > len(data.train):
            raise SystemExit(f"--examples is {count}; allowed: at most the {len(data.train)} of the data set")
        for rows in torch.randperm(len(data.train))[:count].split(plan.batch_size):
            batch = local_batch(data.train, rows, data.num_classes)
            loss = F.cross_entropy(server(edge(normalise(batch.images, plan.data_card()))), batch.targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    train(examples // 10)
    start = time.perf_counter()
    train(examples)
    return examples / (time.perf_counter() - start)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batches-per-message", type=int, nargs="+", default=[1, 4, 16])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--model", default="vit")
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--depth", type=int, default=5)
    parser.add_argument("--patch-size", type=int, default=4)
    parser.add_argument("--train-edge", action="store_true")
    parser.add_argument("--examples", type=int, default=3200)
    arguments = parser.parse_args()
    edge = "trained" if arguments.train_edge else "frozen"
    print(
        f"{arguments.model}, width {arguments.width}, {arguments.depth} blocks, patches of {arguments.patch_size}, {edge} edge"
    )
    print(f"{arguments.clients} clients, batches of 32, {torch.get_num_threads()} threads in one process")
    for count in arguments.batches_per_message:
        experiment = settings(arguments, count)
        ratios = []
        for _ in range(arguments.repeats):
            plain = one_process(experiment, arguments.examples)
            split, size = over_flower(experiment)
            ratios.append(split / plain)
            print(
                f"  K = {count:2d}: {split:6.0f} samples/s over Flower, {plain:6.0f} in one process, {size:.0f} bytes/sample"
            )
        middle = statistics.median(ratios)
        reached = "reached" if middle >= GOAL else "missed"
        print(
            f"K = {count:2d}: median ratio {middle:.2f} ({min(ratios):.2f} to {max(ratios):.2f}, n = {len(ratios)}); "
            f"goal {GOAL} {reached}"
        )


if __name__ == "__main__":
    main()
