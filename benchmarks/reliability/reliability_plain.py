"""An app of Flower's own FedAvg that does the work of fedveil's rounds: the same model, data, steps and messages.

What a careful user of Flower writes; ``reliability_load`` runs it in one process, and a copy of it on Flower's runtime.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from flwr.app import ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from torch.nn import functional as F

from attacks.local_model import shared_tensors
from attacks.normalisation import normalise
from clients.data.card import DataCard
from clients.data.partitions import partition_indices
from clients.task.task import load_weights
from clients.wire.records import tensors_of, to_record
from simulations.experiment.experiment import Experiment

PER_ROUND, STEPS = 10, 10
"""Clients that train in a round, and the optimizer steps of each."""

client = ClientApp()
server = ServerApp()  # by an assignment of its own: Flower looks for it in the text


def settings(clients: int, rounds: int) -> dict[str, Any]:
    """Of fedveil's run; model, data and steps are those of both."""
    return {
        "dataset": "mnist-5k", "model": "lenet", "batch_size": 4, "learning_rate": 0.05, "momentum": 0.0, "num_clients": clients,
        "rounds": rounds, "local_steps": STEPS, "fraction_train": min(1.0, PER_ROUND / clients), "defenses": "",
        "attack_rounds": "", "attack_workers": 0, "auxiliary_fraction": 0.0,
    }  # fmt: skip


@cache
def _work(clients: int) -> tuple[Any, Any, DataCard, Any, Any]:
    """Plan, data, its card, and which training and test examples are whose; once a process."""
    experiment = Experiment.of(**settings(clients, 1))
    plan = experiment.plan()
    data = plan.load_data()
    shares = (
        partition_indices(part.labels.numpy(), "iid", clients, experiment.seed) for part in (data.train, data.test)
    )
    return plan, data, DataCard.of(data), *shares


def _share(context: Context, part: str) -> tuple[Any, torch.Tensor, torch.Tensor]:
    """The plan, and a client's images and labels."""
    plan, data, card, train, test = _work(int(context.node_config["num-partitions"]))
    of = {"train": (data.train, train), "test": (data.test, test)}[part]
    rows = torch.from_numpy(of[1][int(context.node_config["partition-id"])])
    return plan, normalise(of[0].images[rows].float() / 255, card), of[0].labels[rows]


@client.train()
def training(message: Message, context: Context) -> Message:
    """Ten steps of SGD."""
    plan, images, labels = _share(context, "train")
    model = load_weights(plan.build_model(), tensors_of(message, "arrays")).train()
    optimizer = torch.optim.SGD(model.parameters(), lr=float(message.content["config"]["lr"]))  # type: ignore[index, arg-type]
    for step in range(STEPS):
        if step * plan.batch_size % len(labels) == 0:
            order = torch.randperm(len(labels))
        at = order[step * plan.batch_size % len(labels) :][: plan.batch_size]
        optimizer.zero_grad()
        loss = F.cross_entropy(model(images[at]), labels[at])
        loss.backward()
        optimizer.step()
    weights = to_record({name: tensor.detach() for name, tensor in model.state_dict().items()})
    numbers = MetricRecord({"num-examples": len(labels), "train-loss": float(loss.detach())})
    return Message(RecordDict({"arrays": weights, "metrics": numbers}), reply_to=message)


@client.evaluate()
def evaluation(message: Message, context: Context) -> Message:
    """Accuracy on the client's share."""
    plan, images, labels = _share(context, "test")
    model = load_weights(plan.build_model(), tensors_of(message, "arrays")).eval()
    with torch.no_grad():
        logits = model(images)
    hits, loss = float((logits.argmax(1) == labels).float().mean()), float(F.cross_entropy(logits, labels))
    numbers = MetricRecord({"num-examples": len(labels), "accuracy": hits, "loss": loss})
    return Message(RecordDict({"metrics": numbers}), reply_to=message)


def train_by_fedavg(grid: Grid, clients: int, rounds: int, mark: Callable[[], None]) -> float:
    """The rounds; the accuracy of the last. ``mark`` is called before the first, and when one has ended."""
    strategy = FedAvg(
        fraction_train=min(1.0, PER_ROUND / clients), fraction_evaluate=1.0, min_train_nodes=1, min_evaluate_nodes=1,
        min_available_nodes=clients,
    )  # fmt: skip
    result = strategy.start(
        grid=grid,
        initial_arrays=to_record(shared_tensors(_work(clients)[0].build_model())),
        num_rounds=rounds,
        train_config=ConfigRecord({"lr": 0.05}),
        evaluate_fn=lambda *_: mark(),
    )
    last = result.evaluate_metrics_clientapp[rounds]["accuracy"]
    return float(last)  # type: ignore[arg-type]


@server.main()
def main(grid: Grid, context: Context) -> None:
    """On Flower's runtime."""
    from reliability_marks import mark

    numbers = (int(context.run_config[name]) for name in ("num-clients", "rounds"))
    print(f"accuracy {train_by_fedavg(grid, *numbers, mark)}")
