"""A server that asks a deployed node again, steers what it asks, and names data that the node's operator did not offer."""

from __future__ import annotations

import argparse
import itertools
import os
import random
import tempfile
from collections.abc import Iterator
from contextlib import chdir
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import datasets
import torch
from flwr.app import Message, RecordDict
from reliability_runs import Case, require

from attacks.local_model import shared_tensors
from clients.task.task import Task
from clients.wire.records import to_record, values_of
from simulations.experiment.experiment import Experiment
from simulations.runtime.local_grid import FIRST_NODE, LocalGrid
from strategies.exchange.exchange import Exchange

SETTINGS: dict[str, dict[str, Any]] = {
    "federated": {"model": "mlp"},
    "outsourced": {"model": "lenet"},
    "inference": {"model": "vgg_small", "auxiliary_fraction": 0.5},
    "split": {"model": "vit", "patch_size": 7, "width": 16, "depth": 2, "heads": 2},
}
"""Scenario -> settings of its run."""
PLANS = ({"seed": 9}, {"image_size": 2}, {"train_limit": 40}, {"test_limit": 1}, {"batch_size": 1}, {"rounds": 999})
"""What differs in the plans that the server steers by."""
EVALUATIONS, TEST_IMAGES = 20, 10
WORDS = (
    "private", "pics", "..", ".", "~", "", "imagefolder", "csv", "Parquet", "webdataset", "link", "a b", "x@main", "hf:", "file:",
    "etc", "passwd", "x:config", "*", "buckets",
)  # fmt: skip
"""Parts of names of data sets."""


class Node:
    """A deployed node with 50 training images, its exchange, and its task of the round whose model is evaluated first."""

    def __init__(self, scenario: str, folder: Path, **keys: Any) -> None:
        self.experiment = Experiment.of(
            scenario=scenario,
            dataset="mnist-5k",
            num_clients=1,
            rounds=3,
            defenses="",
            test_limit=100,
            **SETTINGS[scenario],
        )
        grid = LocalGrid(1)
        grid.contexts[FIRST_NODE].node_config |= {"randomness": "secret", "secret-dir": str(folder / "secrets"), **keys}
        self.exchange = Exchange(grid, {0: FIRST_NODE}, 0.0)
        self.task = self.experiment.plan().at(4 if scenario == "inference" else 0)

    def __call__(self, kind: str, task: Task, **tensors: dict[str, torch.Tensor]) -> Message:
        """Send a message; the reply."""
        records = {name: to_record(values) for name, values in tensors.items()}
        return self.exchange(kind, {0: RecordDict({"config": self.exchange.config(task), **records})})[0]

    def set_up(self, task: Task, test: range = range(TEST_IMAGES)) -> Message:
        """Deal examples out to the node."""
        return self("query.setup", task, indices={"train": torch.arange(50), "test": torch.tensor(test)})


def node(arguments: argparse.Namespace) -> Iterator[Case]:
    """Repeated and steered messages to a deployed node, and ``--cases`` random names of data sets."""
    for scenario in SETTINGS:
        yield Case(
            "evaluations",
            f"{EVALUATIONS} evaluations in one round of {scenario}",
            partial(_evaluate, scenario, arguments.seed),
        )
        yield Case("set-ups", f"set-ups of other images and plans in {scenario}", partial(_steer, scenario))
    for number in range(arguments.first, arguments.first + arguments.cases):
        draw = random.Random(f"{arguments.seed} {number}")
        name = "hf:" + "/".join(draw.choices(WORDS, k=draw.randint(1, 3)))
        yield Case("names of data sets", f"seed {arguments.seed}, case {number}: {name!r}", partial(_name, name))


def _evaluate(scenario: str, seed: int) -> str:
    """No two evaluations of a round have different answers, whatever weights and logits are sent."""
    generator = torch.Generator().manual_seed(seed)
    with tempfile.TemporaryDirectory() as folder:
        asked = Node(scenario, Path(folder))
        require(not asked.set_up(asked.task).has_error(), "the node was not set up")
        answers, refused = set(), 0
        for number in range(EVALUATIONS):
            weights = {} if scenario == "split" else shared_tensors(asked.task.plan.build_model())
            spread = number * 1e-5  # the first is the agreed model
            sent = {n: w * (1 + spread * torch.randn(w.shape, generator=generator)) for n, w in weights.items()}
            logits = {"0": torch.randn(TEST_IMAGES, 10, generator=generator)}
            reply = asked("evaluate", asked.task, arrays=sent, answers=logits, logits=logits)
            refused += reply.has_error()
            if not reply.has_error():
                answers.add(repr(sorted(values_of(reply, "metrics").items())))
    require(len(answers) == 1 and refused == EVALUATIONS - 1, f"{len(answers)} answers, {refused} refused")
    return f"refused: all but one of {EVALUATIONS}"


def _steer(scenario: str) -> str:
    """A node keeps to the examples and the plan of its first set-up."""
    with tempfile.TemporaryDirectory() as folder:
        asked = Node(scenario, Path(folder))
        require(not asked.set_up(asked.task).has_error(), "the node was not set up")
        for at in range(TEST_IMAGES):
            require(asked.set_up(asked.task, range(at, at + 1)).has_error(), f"set up for test image {at} alone")
        for changes in PLANS:
            require(asked.set_up(asked.task.but(**changes)).has_error(), f"set up with {changes}")
        require(not asked.set_up(asked.task).has_error(), "the first set-up was refused when it was repeated")
    return f"refused: {TEST_IMAGES + len(PLANS)} set-ups"


def _name(name: str) -> str:
    """No library looks where the operator did not offer anything, though pictures lie wherever it could look."""
    unreachable = mock.patch.object(datasets, "load_dataset", side_effect=ConnectionError)
    with (
        tempfile.TemporaryDirectory() as text,
        unreachable as fetched,
        mock.patch.object(datasets, "load_from_disk") as read,
    ):
        work, offered = Path(text) / "work", Path(text) / "offered"
        offered.mkdir()
        for root, kind, label in itertools.product((work, Path(text)), ("train", "test"), "ab"):
            file = root / "private" / "pics" / kind / label / "0.png"
            file.parent.mkdir(parents=True)
            file.touch()
        for place in (work, offered):
            (place / "link").symlink_to(Path(text) / "private")
        with chdir(work):
            for keys in ({}, {"data-dir": str(offered)}, {"data-dir": str(offered), "download": True}):
                asked = Node("federated", Path(text), **keys)
                reply = asked.set_up(asked.task.but(dataset=name, download=True, data_dir=str(work) if keys else ""))
                require(reply.has_error(), f"set up with {keys}")
                local = os.path.lexists(name.removeprefix("hf:")) or "download" not in keys
                require(
                    not read.called and not (local and fetched.called), f"the package datasets was asked with {keys}"
                )
    return "refused"
