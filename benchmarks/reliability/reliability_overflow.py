"""An active server sends finite weights on which one example alone overflows; replies with and without the example are compared."""

from __future__ import annotations

import argparse
import json
import random
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import torch
from flwr.app import Message
from reliability_node import Node
from reliability_runs import Case, require

from attacks.local_model import shared_tensors
from attacks.normalisation import normalise
from clients.task.task import Task
from clients.wire.records import tensors_of, values_of

SAMPLED = "neighbours='add-or-remove', sample_rate=0.25"
BOUNDS = (
    *(
        f"DPSGD(noise_multiplier=20.0{clipping}{more})"
        for clipping in ("", ", clipping='ghost'")
        for more in ("", f", {SAMPLED}")
    ),
    "ClientDP(noise_multiplier=40.0)",
    "FlowerLocalDP(epsilon=0.1)",
)  # fmt: skip
EXAMPLES, MESSAGES = 40, 6
OPEN = {"model-check": False, "probes": True, "repeats": -1}
"""What the node's operator allows, at worst."""


def overflow(arguments: argparse.Namespace) -> Iterator[Case]:
    """An active server that makes one example of a bounded client overflow, ``--cases`` times."""
    for number in range(arguments.first, arguments.first + arguments.cases):
        bound = BOUNDS[number % len(BOUNDS)]
        yield Case(
            bound, f"seed {arguments.seed}, case {number}", partial(_compare, bound, f"{arguments.seed} {number}")
        )


def _compare(bound: str, seed: str) -> str:
    """No reply is an error, and the numbers of both worlds are the same."""
    draw = random.Random(seed)
    victim, kind = draw.randrange(EXAMPLES), draw.choice(["train", "train.probe"])
    others = [at for at in range(EXAMPLES) if at != victim]
    worlds = ([victim, *others], others if SAMPLED in bound else [EXAMPLES, *others])
    told, lengths = [set[str](), set[str]()], []
    for at, train in enumerate(worlds):
        with tempfile.TemporaryDirectory() as folder:
            asked = Node("federated", Path(folder), **OPEN)
            task = (
                asked.experiment.plan()
                .at(1)
                .but(pipeline=bound, batch_size=10, rounds=1, probe_images=1, probe_targets=1)
            )
            weights = _weights(task, victim, 10 ** draw.uniform(15, 22), 10 ** draw.uniform(20, 37))
            dealt = {"train": torch.tensor(train), "test": torch.arange(10)}
            require(not asked("query.setup", task, indices=dealt).has_error(), "the node was not set up")
            for _ in range(MESSAGES):
                reply = asked(kind, task, arrays=weights)
                require(not reply.has_error(), f"world {at}: {reply.error.reason if reply.has_error() else ''}")
                told[at].add(json.dumps(values_of(reply, "metrics"), sort_keys=True))
                lengths.append(_length(reply))
    require(told[0] == told[1], f"other numbers: {told}")
    require(max(lengths) < 2 * min(lengths), f"lengths of updates from {min(lengths)} to {max(lengths)}")
    return "the same"


def _weights(task: Task, victim: int, slope: float, gain: float) -> dict[str, torch.Tensor]:
    """Weights of an MLP, one unit of which is on for the victim alone."""
    weights = {name: one.clone() for name, one in shared_tensors(task.plan.build_model()).items()}
    images = normalise(task.plan.load_data().train.images[: EXAMPLES + 1] / 255, task.plan.data_card()).flatten(1)
    along = (images[victim] - images.mean(0)) / (images[victim] - images.mean(0)).norm()
    seen = images @ along
    rest = seen[torch.arange(len(seen)) != victim].max()
    first, bias, second = list(weights)[:3]
    weights[first][0], weights[bias][0], weights[second][:, 0] = along * slope, -(seen[victim] + rest) / 2 * slope, gain
    return weights


def _length(reply: Message) -> float:
    """Of the first update in a reply."""
    update = tensors_of(reply, next(iter(reply.content.array_records)))
    return float(torch.cat([one.flatten() for one in update.values()]).double().norm())
