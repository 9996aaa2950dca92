"""The share of a round that ``RecordingStrategy`` adds: CPU time of a round of resnet18, with and without it, in one process.

A client trains torchvision's resnet18 on ``--steps`` batches, and FedAvg aggregates its replies. The share is the CPU time (user
and system) that the recorder's own code takes, over that of the rest of the same round; rounds without it take turns with these,
and their difference, which the machine's noise may hide, is printed beside it, as is wall time: the recorder also waits for the
disk. What it costs depends on the model alone, so that its share falls with the steps. The goal is at most 2 %.

    python benchmarks/recording.py --rounds 4 --steps 20
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import FedAvg, Strategy
from torch import nn
from torch.nn import functional as F

from clients.flower_private import act_as_task, set_message_id
from clients.models.classifiers import build_model
from strategies.recording.strategy import RecordingStrategy

GOAL = 0.02


class Clients:
    """A grid in this process: every client trains the model that it is sent on noise, which costs what images cost."""

    def __init__(self, model: nn.Module, clients: int, steps: int, batch: int, side: int) -> None:
        act_as_task()
        self.model, self.clients, self.steps = model, clients, steps
        self.batch = torch.rand(batch, 3, side, side), torch.randint(10, (batch,))

    def get_node_ids(self) -> list[int]:
        """From 1."""
        return list(range(1, self.clients + 1))

    def send_and_receive(self, messages: Iterable[Message], timeout: float | None = None) -> Iterator[Message]:
        """All replies, once everybody has trained."""
        return iter([self._answer(message) for message in messages])

    def _answer(self, message: Message) -> Message:
        set_message_id(message, "m")
        self.model.load_state_dict(message.content["arrays"].to_torch_state_dict())
        optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01, momentum=0.9)
        for _ in range(self.steps):
            optimizer.zero_grad()
            F.cross_entropy(self.model(self.batch[0]), self.batch[1]).backward()
            optimizer.step()
        arrays, metrics = ArrayRecord(self.model.state_dict()), MetricRecord({"num-examples": len(self.batch[1])})
        return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)


class Timed(RecordingStrategy):
    """Counts the CPU seconds of the recorder's own code."""

    own = 0.0

    def _keep_sent(self, *arguments: Any) -> None:
        start = time.process_time()
        super()._keep_sent(*arguments)
        self.own += time.process_time() - start

    def _kept(self, *arguments: Any) -> list[Message]:
        start = time.process_time()
        received = super()._kept(*arguments)
        self.own += time.process_time() - start
        return received


def cpu_of_round(strategy: Strategy, grid: Clients) -> tuple[float, float]:
    """CPU seconds and wall seconds of one round, training and aggregation included."""
    arrays = ArrayRecord(grid.model.state_dict())
    cpu, wall = time.process_time(), time.perf_counter()
    strategy.start(grid, arrays, num_rounds=1, train_config=ConfigRecord({"lr": 0.01}))  # type: ignore[arg-type]
    return time.process_time() - cpu, time.perf_counter() - wall


def main() -> None:
    """Prints the share."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--clients", type=int, default=2)
    parser.add_argument("--steps", type=int, default=20, help="local steps of a client")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--side", type=int, default=32, help="pixels; CIFAR has 32")
    arguments = parser.parse_args()
    model = build_model(
        "torchvision:resnet18", num_classes=10, input_shape=(3, arguments.side, arguments.side), norm="batch"
    )
    grid = Clients(model, arguments.clients, arguments.steps, arguments.batch, arguments.side)
    usual = {"min_train_nodes": arguments.clients, "min_available_nodes": arguments.clients, "fraction_evaluate": 0.0}
    plain, recorded, shares = [], [], []
    with tempfile.TemporaryDirectory() as scratch:
        cpu_of_round(FedAvg(**usual), grid)  # the first one warms up
        for at in range(arguments.rounds):
            plain.append(cpu_of_round(FedAvg(**usual), grid))
            strategy = Timed(FedAvg(**usual), Path(scratch) / str(at))
            recorded.append(cpu_of_round(strategy, grid))
            shares.append(strategy.own / (recorded[-1][0] - strategy.own))
            size = sum(path.stat().st_size for path in (Path(scratch) / str(at)).rglob("*") if path.is_file())
    cpu, more = (statistics.median(one[0] for one in of) for of in (plain, recorded))
    wall, longer = (statistics.median(one[1] for one in of) for of in (plain, recorded))
    share = statistics.median(shares)
    print(
        f"{arguments.clients} clients, {arguments.steps} steps of {arguments.batch} images of {arguments.side} pixels each"
    )
    print(
        f"CPU of a round, median of {arguments.rounds}: {cpu:.2f} s plain, {more:.2f} s recorded ({size / 1e6:.0f} MB)"
    )
    each = ", ".join(f"{100 * one:.2f}" for one in shares)
    print(
        f"share of CPU: {100 * share:.2f} % (rounds: {each}), goal {100 * GOAL:.0f} %: {'met' if share <= GOAL else 'MISSED'}"
    )
    print(f"wall: {wall:.2f} s plain, {longer:.2f} s recorded; load average {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
