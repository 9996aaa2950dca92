"""Rounds of plain federated training beside an app of Flower that trains the same model on the same data.

Every client trains and evaluates in every round on both sides. Seconds are of one round, from time stamps behind rounds: without
the start, without the first round.
"""

from __future__ import annotations

import logging
import os
import re
import tempfile
import time
from functools import cache, partial
from typing import Any

import numpy as np
import torch
from speed import Took, Work
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

BATCH, STEPS, RATE, MOMENTUM, SEED = 4, 4, 0.1, 0.5, 0


def ours(in_process: bool, clients: int, rounds: int, _: str) -> Took:
    """Runs fedveil's server and clients without attacks, in this process or on Flower's simulation."""
    from clients.app import app as client_app
    from clients.flower_private import look_for_messages_sooner
    from simulations.experiment.experiment import Experiment
    from simulations.runtime.local_grid import LocalGrid
    from simulations.server_app import run_experiment

    ends = Ends()
    logging.getLogger("flwr").addHandler(ends)
    with tempfile.TemporaryDirectory() as folder:
        experiment = Experiment.of(
            dataset="mnist-5k", model="mlp", width=width_of(clients), rounds=rounds, num_clients=clients,
            output_dir=f"{folder}/run", local_steps=STEPS, batch_size=BATCH, learning_rate=RATE, momentum=MOMENTUM,
            learning_rate_milestones="", defenses="", attack_rounds="", adaptive=False, auxiliary_fraction=0.0, seed=SEED,
        )  # fmt: skip
        if in_process:
            run_experiment(LocalGrid(clients), experiment, in_process=True)
        else:
            look_for_messages_sooner()  # as `fedveil run` does
            simulate(lambda grid: run_experiment(grid, experiment), client_app, clients)
    return ends.took()


def theirs(clients: int, rounds: int, _: str) -> Took:
    """Runs Flower's FedAvg on its simulation."""
    from flwr.app import ArrayRecord, MetricRecord
    from flwr.serverapp.strategy import FedAvg

    ends = Ends()

    def end(__: int, ___: ArrayRecord) -> MetricRecord:
        ends.at.append(time.perf_counter())
        return MetricRecord({})

    def main(grid: Any) -> None:
        strategy = FedAvg(min_train_nodes=1, min_evaluate_nodes=1, min_available_nodes=clients)
        torch.manual_seed(SEED)
        start = ArrayRecord(network(clients).state_dict())
        result = strategy.start(grid, start, num_rounds=rounds, evaluate_fn=end)
        ends.accuracy = float(result.evaluate_metrics_clientapp[rounds]["accuracy"])

    simulate(main, flower_app(), clients)
    return ends.took()


class Ends(logging.Handler):
    """Time stamps behind rounds; of ours, from the log."""

    def __init__(self) -> None:
        super().__init__()
        self.at: list[float] = []
        self.accuracy = 0.0

    def emit(self, record: logging.LogRecord) -> None:
        """Takes the time of a round's line."""
        if line := re.search(r"round \d+ of \d+ \| test accuracy ([\d.]+)", record.getMessage()):
            self.at.append(time.perf_counter())
            self.accuracy = float(line[1])

    def took(self) -> Took:
        """Mean seconds of a round behind the first one; the first stamp is of the initial model."""
        return Took((self.at[-1] - self.at[1]) / (len(self.at) - 2), f"{100 * self.accuracy:.1f} %")


def simulate(main: Any, client_app: Any, clients: int) -> None:
    """Runs a server's function on Flower's simulation of so many clients, on all processors."""
    from flwr.serverapp import ServerApp
    from flwr.simulation import run_simulation

    server = ServerApp()
    server.main()(lambda grid, _: main(grid))
    args = {"num_cpus": os.cpu_count(), "logging_level": "ERROR", "log_to_driver": False}
    run_simulation(server, client_app, clients, backend_config={"client_resources": {"num_cpus": 1}, "init_args": args})


def flower_app() -> Any:
    """The peer's clients."""
    from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
    from flwr.clientapp import ClientApp

    app = ClientApp()

    def begin(message: Message, context: Context, part: int) -> tuple[nn.Module, Tensor, Tensor]:
        clients, (images, labels) = context.node_config["num-partitions"], normalised()[part]
        model = network(clients)
        model.load_state_dict(message.content["arrays"].to_torch_state_dict())
        own = shares(len(labels), clients)[context.node_config["partition-id"]]
        return model, images[own], labels[own]

    @app.train()
    def train(message: Message, context: Context) -> Message:
        model, images, labels = begin(message, context, 0)
        optimizer = torch.optim.SGD(model.parameters(), lr=RATE, momentum=MOMENTUM)
        loader, step = DataLoader(TensorDataset(images, labels), BATCH, shuffle=True), 0
        while step < STEPS:
            for seen, truth in loader:
                optimizer.zero_grad()
                F.cross_entropy(model(seen), truth).backward()
                optimizer.step()
                if (step := step + 1) == STEPS:
                    break
        numbers = MetricRecord({"num-examples": min(len(labels), STEPS * BATCH)})
        return Message(RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": numbers}), reply_to=message)

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        model, images, labels = begin(message, context, 1)
        with torch.no_grad():
            logits = model.eval()(images)
        right, loss = float((logits.argmax(1) == labels).float().mean()), float(F.cross_entropy(logits, labels))
        numbers = MetricRecord({"num-examples": len(labels), "accuracy": right, "loss": loss})
        return Message(RecordDict({"metrics": numbers}), reply_to=message)

    return app


def width_of(clients: int) -> int:
    """Neurons of a hidden layer: narrower for many clients, as both servers hold all updates of a round."""
    return 200 if clients < 1_000 else 20


def network(clients: int) -> nn.Module:
    """FedAvg's 2NN, for so many clients."""
    width = width_of(clients)
    layers = (nn.Linear(784, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 10))
    return nn.Sequential(nn.Flatten(), *layers)


@cache
def normalised() -> list[tuple[Tensor, Tensor]]:
    """Training and test images and classes, read once in each process."""
    from clients.data.datasets import load_dataset

    parts = load_dataset("mnist-5k").train, load_dataset("mnist-5k").test
    scale = parts[0].images.float()
    return [((part.images.float() - scale.mean()) / scale.std(), part.labels) for part in parts]


@cache
def shares(examples: int, clients: int) -> list[Tensor]:
    """Positions of each client's examples."""
    order = np.random.default_rng(SEED).permutation(examples)
    return [torch.from_numpy(part) for part in np.array_split(order, clients)]


def work(clients: int, rounds: int, in_process: bool) -> Work:
    """Rounds of so many clients; the peer is on Ray in either case, as Flower has no other simulation."""
    sides = (partial(side, clients, rounds) for side in (partial(ours, in_process), theirs))
    name = f"round of {clients:,} clients, {'in process' if in_process else 'on Ray'}"
    return Work(name, "Flower 1.41 on Ray", 1.1, *sides)


SIZES = ((False, 4, 40), (False, 100, 6), (True, 4, 40), (True, 100, 6), (True, 1_000, 3))
"""Whether in process, clients, rounds. Ten thousand clients would hold ten thousand updates, and on Ray take minutes a round."""
WORKS = [work(clients, rounds, in_process) for in_process, clients, rounds in SIZES]
