"""The pieces of benchmarks/reliability.py about many clients and about failing ones; ``load`` starts this file as two processes."""

from __future__ import annotations

import argparse
import itertools
import json
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil
from reliability import HERE, require, rows_of, table

PER_ROUND, STEPS = 10, 10
"""Clients that train in a round, and the optimizer steps of each."""
RATIO, GROWTH = 1.2, 1.1
"""What ``load`` must not exceed: seconds a round over Flower's own, and memory in the last over that in the tenth round."""
FAILING = 0.2


def settings(clients: int, rounds: int) -> dict[str, Any]:
    """Of both servers."""
    return {
        "dataset": "mnist-5k", "model": "lenet", "batch_size": 4, "learning_rate": 0.05, "momentum": 0.0, "num_clients": clients,
        "rounds": rounds, "local_steps": STEPS, "fraction_train": min(1.0, PER_ROUND / clients), "defenses": "",
        "attack_rounds": "", "attack_workers": 0, "auxiliary_fraction": 0.0,
    }  # fmt: skip


def load(arguments: argparse.Namespace) -> None:
    """1,000 simulated clients, 10 of them in each of 50 rounds, beside Flower's FedAvg with the same clients on the same grid."""
    found = {}
    for server in ("flower", "fedveil"):
        line = [sys.executable, __file__, server, str(arguments.clients), str(arguments.rounds)]
        done = subprocess.run(line, capture_output=True, text=True, check=False, cwd=HERE.parent)
        require(done.returncode == 0, f"{server}: {done.stderr[-3000:]}")
        found[server] = json.loads(done.stdout.splitlines()[-1])
    rows = []
    for server, told in found.items():
        seconds, cpu = (
            [after - before for before, after in itertools.pairwise(told[clock])] for clock in ("at", "cpu")
        )
        early, late = told["mib"][min(10, len(told["mib"]) - 1)], told["mib"][-1]
        rows.append([
            server, f"{statistics.median(seconds):.2f}", f"{max(seconds):.2f}", f"{statistics.median(cpu):.2f}",
            f"{early:.0f}", f"{late:.0f}", f"{told['accuracy']:.3f}",
        ])  # fmt: skip
    head = [
        "server",
        "seconds a round (median)",
        "slowest",
        "of one CPU",
        "MiB in round 10",
        "MiB in the last round",
        "accuracy",
    ]
    table(f"{arguments.clients} clients, {PER_ROUND} a round, {arguments.rounds} rounds", head, rows)
    ratio = float(rows[1][1]) / float(rows[0][1])
    growth = float(rows[1][5]) / float(rows[1][4])
    print(
        f"\nfedveil takes {ratio:.2f} times Flower's seconds a round (goal: at most {RATIO}); memory grew {growth:.2f} times"
    )
    require(ratio <= RATIO and growth <= GROWTH, "a goal was missed")


def mark(told: dict[str, Any]) -> None:
    """A round has ended."""
    told["at"].append(time.monotonic())
    told["mib"].append(psutil.Process().memory_info().rss / 2**20)
    told["cpu"].append(time.process_time())


def fedveil(clients: int, rounds: int) -> dict[str, Any]:
    """The rounds of fedveil, with its rows, checkpoints and reports."""
    from simulations import audit
    from simulations.run_directory import RunDirectory

    told: dict[str, Any] = {"at": [], "mib": [], "cpu": []}
    complete = RunDirectory.write_progress

    def marked(self: Any, *args: Any, **kwargs: Any) -> None:
        complete(self, *args, **kwargs)
        mark(told)

    RunDirectory.write_progress = marked  # type: ignore[method-assign]
    with tempfile.TemporaryDirectory() as folder:
        audit(out=Path(folder) / "run", **settings(clients, rounds))
        rows = [row for row in rows_of(Path(folder) / "run") if row["metric"] == "test-accuracy"]
    told["accuracy"] = max(rows, key=lambda row: row["round"])["value"]
    told["at"], told["mib"] = (
        told["at"][: rounds + 1],
        told["mib"][: rounds + 1],
    )  # behind the rounds come the last reports
    return told


def flower(clients: int, rounds: int) -> dict[str, Any]:
    """The rounds of Flower's own FedAvg: the same model, data, steps and messages, evaluated by all clients as well."""
    from flwr.app import ConfigRecord
    from flwr.serverapp.strategy import FedAvg

    from attacks.local_model import shared_tensors
    from clients.records import to_record
    from defenses.pipeline import Pipeline
    from simulations.experiment import Experiment
    from simulations.local_grid import LocalGrid

    experiment = Experiment.of(**settings(clients, rounds))
    plan = experiment.plan(Pipeline())
    told: dict[str, Any] = {"at": [], "mib": [], "cpu": []}

    def at_the_end(*_: Any) -> None:
        mark(told)

    strategy = FedAvg(
        fraction_train=min(1.0, PER_ROUND / clients), fraction_evaluate=1.0, min_train_nodes=1, min_evaluate_nodes=1,
        min_available_nodes=1,
    )  # fmt: skip
    grid = LocalGrid(clients, app=_plain_app(plan, experiment, clients))
    initial = to_record(shared_tensors(plan.build_model()))
    result = strategy.start(
        grid=grid,
        initial_arrays=initial,
        num_rounds=rounds,
        train_config=ConfigRecord({"lr": 0.05}),
        evaluate_fn=at_the_end,
    )
    last = result.evaluate_metrics_clientapp[rounds]
    return told | {"accuracy": float(last["accuracy"])}


def _plain_app(plan: Any, experiment: Any, clients: int) -> Any:
    """What a careful user of Flower writes."""
    import torch
    from flwr.app import Context, Message, MetricRecord, RecordDict
    from flwr.clientapp import ClientApp
    from torch.nn import functional as F

    from attacks.normalisation import normalise
    from clients.data.card import DataCard
    from clients.data.partitions import partition_indices
    from clients.records import tensors_of, to_record
    from clients.task import load_weights

    data = plan.load_data()
    card = DataCard.of(data)
    train = partition_indices(data.train.labels.numpy(), "iid", clients, experiment.seed)
    test = partition_indices(data.test.labels.numpy(), "iid", clients, experiment.seed)
    app = ClientApp()

    def share(part: Any, at: Any) -> tuple[torch.Tensor, torch.Tensor]:
        rows = torch.from_numpy(at)
        return normalise(part.images[rows].float() / 255, card), part.labels[rows]

    @app.train()
    def training(message: Message, context: Context) -> Message:
        """Ten steps of SGD."""
        mine = train[int(context.node_config["partition-id"])]
        model = load_weights(plan.build_model(), tensors_of(message, "arrays")).train()
        images, labels = share(data.train, mine)
        optimizer = torch.optim.SGD(model.parameters(), lr=float(message.content["config"]["lr"]))  # type: ignore[index, arg-type]
        for step in range(STEPS):
            if step * plan.batch_size % len(mine) == 0:
                order = torch.randperm(len(mine))
            at = order[step * plan.batch_size % len(mine) :][: plan.batch_size]
            optimizer.zero_grad()
            loss = F.cross_entropy(model(images[at]), labels[at])
            loss.backward()
            optimizer.step()
        weights = to_record({name: tensor.detach() for name, tensor in model.state_dict().items()})
        numbers = MetricRecord({"num-examples": len(mine), "train-loss": float(loss.detach())})
        return Message(RecordDict({"arrays": weights, "metrics": numbers}), reply_to=message)

    @app.evaluate()
    def evaluation(message: Message, context: Context) -> Message:
        """Accuracy on the client's share."""
        mine = test[int(context.node_config["partition-id"])]
        model = load_weights(plan.build_model(), tensors_of(message, "arrays")).eval()
        images, labels = share(data.test, mine)
        with torch.no_grad():
            logits = model(images)
        hits, loss = float((logits.argmax(1) == labels).float().mean()), float(F.cross_entropy(logits, labels))
        numbers = MetricRecord({"num-examples": len(mine), "accuracy": hits, "loss": loss})
        return Message(RecordDict({"metrics": numbers}), reply_to=message)

    return app


def clients(arguments: argparse.Namespace) -> None:
    """A fifth of all answers to training and evaluation fails, each in one of five ways drawn by chance."""
    from flwr.app import Message

    from simulations.experiment import Experiment
    from simulations.local_grid import LocalGrid
    from simulations.server_app import run_experiment

    count, rounds, draw = 20, 10, random.Random(arguments.seed)
    injected: dict[str, int] = dict.fromkeys(WAYS, 0)

    class Failing(LocalGrid):
        def answer(self, message: Message) -> Message | None:
            if message.metadata.message_type not in ("train", "evaluate") or draw.random() >= FAILING:
                return super().answer(message)
            way = draw.choice(list(WAYS))
            injected[way] += 1
            return WAYS[way](self, message)

    chosen = settings(count, rounds) | {
        "fraction_train": 1.0,
        "client_timeout": 4.0,
        "learning_rate": 0.1,
        "momentum": 0.5,
    }
    with tempfile.TemporaryDirectory() as folder:
        accuracy = {}
        for name, grid in (("none fails", LocalGrid(count)), ("a fifth fails", Failing(count))):
            out = Path(folder) / name
            run_experiment(grid, Experiment.of(**chosen, output_dir=str(out)))
            rows = rows_of(out)
            measured = [row for row in rows if row["metric"] == "test-accuracy" and row["reference"] == "original"]
            accuracy[name] = max(measured, key=lambda row: row["round"])["value"]
        told = [row["message"] for row in rows if row["metric"] == "client" and row["status"] == "failed"]
    found = {way: sum(bool(re.search(word, message)) for message in told) for way, word in WORDS.items()}
    table(f"{FAILING:.0%} of all answers fail: {count} clients, {rounds} rounds, seed {arguments.seed}",
          ["way to fail", "injected", "rows that say so"], [[way, injected[way], found[way]] for way in WAYS])  # fmt: skip
    print(f"\nAccuracy after {rounds} rounds: " + ", ".join(f"{name} {value:.3f}" for name, value in accuracy.items()))
    require(found == injected and len(told) == sum(injected.values()), f"rows {found} for {injected}")


def _raises(_: Any, message: Any) -> Any:
    from flwr.app import Message
    from flwr.app.error import Error

    return Message(Error(code=2, reason="OSError: the disk of this client is gone"), reply_to=message)


def _hangs(grid: Any, message: Any) -> Any:
    """The client's own watchdog ends it: what it works on never does."""
    from clients import training

    run, evaluate = training.LocalClient.train, training.LocalClient.evaluate

    def forever(*_: Any) -> Any:
        while True:
            time.sleep(0.01)

    training.LocalClient.train = training.LocalClient.evaluate = forever  # type: ignore[method-assign, assignment]
    try:
        return type(grid).__mro__[1].answer(grid, message)
    finally:
        training.LocalClient.train, training.LocalClient.evaluate = run, evaluate  # type: ignore[method-assign]


def _spoilt(value: float, shape: tuple[int, ...] | None) -> Any:
    import numpy as np
    from flwr.app import Array, ArrayRecord, MetricRecord

    def spoil(grid: Any, message: Any) -> Any:
        reply = type(grid).__mro__[1].answer(grid, message)
        if "arrays" in reply.content:
            arrays = {name: array.numpy() for name, array in reply.content["arrays"].items()}
            spoilt = {name: np.full(shape or one.shape, value, one.dtype) for name, one in arrays.items()}
            reply.content["arrays"] = ArrayRecord({name: Array(one) for name, one in spoilt.items()})
        else:
            told = dict(reply.content["metrics"])
            wrong = {"test-accuracy-original": value} if shape is None else {"one-too-many": 1.0}
            reply.content["metrics"] = MetricRecord(told | wrong)
        return reply

    return spoil


WAYS: dict[str, Any] = {
    "raises": _raises, "hangs": _hangs, "never answers": lambda *_: None, "sends NaN": _spoilt(float("nan"), None),
    "sends other shapes or names": _spoilt(0.0, (3,)),
}  # fmt: skip
WORDS = {
    "raises": "the disk of this client is gone", "hangs": "client ran longer than", "never answers": "no reply within",
    "sends NaN": "holds NaN|is nan", "sends other shapes or names": "expected float32|one-too-many",
}  # fmt: skip


if __name__ == "__main__":
    print(json.dumps({"flower": flower, "fedveil": fedveil}[sys.argv[1]](int(sys.argv[2]), int(sys.argv[3]))))
