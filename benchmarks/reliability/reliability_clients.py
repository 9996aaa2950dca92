"""The piece of benchmarks/reliability/reliability.py about clients that fail, in one process and on Flower's runtime."""

from __future__ import annotations

import argparse
import random
import re
import tempfile
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from reliability_failing import AFTERWARDS, FAILING, WAYS, WORDS, hangs, raises, way_of
from reliability_plain import settings
from reliability_runs import require, rows_of, table

TIMEOUT = {False: 10.0, True: 30.0}
"""Seconds that a client may take, in one process and on Flower's runtime: far more than its work takes."""


def clients(arguments: argparse.Namespace) -> None:
    """A fifth of all answers to training and evaluation fails, each in one of some ways drawn by chance."""
    count, rounds = (10, 5) if arguments.real else (20, 10)
    chosen = settings(count, rounds) | {
        "fraction_train": 1.0, "client_timeout": TIMEOUT[arguments.real], "learning_rate": 0.1, "momentum": 0.5,
        "batch_size": 16, "local_steps": 30,
    }  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        # Without a limit: what is imported at the first training counts as a client's work, too.
        whole, _ = _in_one_process(Path(folder) / "whole", chosen | {"client_timeout": 3600.0}, None)
        if arguments.real:
            from reliability_real import run_failing

            rows, injected = run_failing(Path(folder), chosen, arguments.seed), _drawn(arguments.seed, count, rounds)
        else:
            rows, injected = _in_one_process(Path(folder) / "failing", chosen, random.Random(arguments.seed))
    told = {
        (row["message"].partition(": ")[0], int(row["round"]), int(row["client"])): row["message"]
        for row in rows
        if row["metric"] == "client" and row["status"] == "failed"
    }
    ways = list(dict.fromkeys(way for way in (*WAYS, "never answers") if way in injected.values()))
    wrong = {
        what: told.get(what, "no row")
        for what, way in injected.items()
        if not re.search(WORDS[way], told.get(what, ""))
    }
    counted = Counter(injected.values())
    said = Counter(way for what, way in injected.items() if what not in wrong)
    where = "Flower's simulation runtime" if arguments.real else "in one process"
    table(f"{FAILING:.0%} of all answers fail: {count} clients, {rounds} rounds, {where}, seed {arguments.seed}",
          ["a client", "times", "rows that say so"], [[way, counted[way], said[way]] for way in ways])  # fmt: skip
    others = len(told.keys() - injected.keys())
    print(
        f"\n{len(injected)} of {count * (2 * rounds + 1)} answers were spoilt; {others} others failed. "
        f"Accuracy after {rounds} rounds: {_accuracy(rows, rounds):.3f}; where none fails {_accuracy(whole, rounds):.3f}"
    )
    require(not wrong, f"other rows than expected: {wrong}")
    require(told.keys() == injected.keys(), f"answers that nobody spoilt failed: {told.keys() - injected.keys()}")


def _accuracy(rows: Iterable[dict[str, Any]], last: int) -> float:
    found = [
        row["value"]
        for row in rows
        if (row["metric"], row["reference"]) == ("test-accuracy", "original") and row["round"] == last
    ]
    require(len(found) == 1, f"the last round has {len(found)} accuracies")
    return float(found[0])


Injected = dict[tuple[str, int, int], str]
"""(type of the message, round, client) -> how it fails."""


def _drawn(seed: int, count: int, rounds: int) -> Injected:
    asked = [("evaluate", at, client) for at in range(rounds + 1) for client in range(count)]
    asked += [("train", at, client) for at in range(1, rounds + 1) for client in range(count)]
    return {what: way for what in asked if (way := way_of(str(seed), *what))}


def _in_one_process(
    out: Path, chosen: dict[str, Any], draw: random.Random | None
) -> tuple[list[dict[str, Any]], Injected]:
    """The rows of a run, and what was spoilt in it; without a draw nothing is."""
    from flwr.app import Message

    from clients.task.scenarios import read_task
    from clients.wire.records import values_of
    from simulations.experiment.experiment import Experiment
    from simulations.runtime.local_grid import FIRST_NODE, LocalGrid
    from simulations.server_app import run_experiment

    injected: Injected = {}
    ways = ("raises an error", "hangs", "never answers", *AFTERWARDS)

    class Failing(LocalGrid):
        def answer(self, message: Message) -> Message | None:
            kind = message.metadata.message_type
            if draw is None or kind not in ("train", "evaluate") or draw.random() >= FAILING:
                return super().answer(message)
            way = draw.choice(ways)
            task = read_task(values_of(message, "config")["task"])
            injected[kind, task.round, message.metadata.dst_node_id - FIRST_NODE] = way
            if way == "never answers":
                return None
            reply = _instead(
                super().answer, message, hangs if way == "hangs" else raises if way == "raises an error" else None
            )
            if way in AFTERWARDS:
                AFTERWARDS[way](reply)
            return reply

    run_experiment(Failing(chosen["num_clients"]), Experiment.of(**chosen, output_dir=str(out)))
    return rows_of(out), injected


def _instead(answer: Any, message: Any, fails: Any) -> Any:
    """A client's answer; where it fails, what it does instead of its work."""
    from clients.federated import client as training

    if fails is None:
        return answer(message)
    train, evaluate = training.LocalClient.train, training.LocalClient.evaluate
    training.LocalClient.train = training.LocalClient.evaluate = lambda *_: fails()  # type: ignore[method-assign, assignment]
    try:
        return answer(message)
    finally:
        training.LocalClient.train, training.LocalClient.evaluate = train, evaluate  # type: ignore[method-assign]
