"""The piece of benchmarks/reliability/reliability.py about many clients; in one process it starts this file twice, once for
each server.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psutil
from reliability_marks import measured
from reliability_runs import ROOT, columns, last_accuracy, require, table

RATIO, GROWTH = 1.2, 1.1
"""What ``load`` must not exceed: seconds a round over Flower's own, and memory in the last over that in the tenth round."""
FEWEST_ROUNDS = 20
"""From which on memory is judged."""


def load(arguments: argparse.Namespace) -> None:
    """1,000 simulated clients, 10 of them in each of 50 rounds, beside Flower's FedAvg with the same clients on the same grid."""
    busy = os.getloadavg()[0]
    if arguments.real:
        from reliability_real import load_on_flowers_runtime

        found = load_on_flowers_runtime(arguments.clients, arguments.rounds)
    else:
        found = {server: _in_one_process(server, arguments) for server in ("flower", "fedveil")}
    where = "Flower's simulation runtime" if arguments.real else "in one process"
    numbers = [_row(server, told, real=arguments.real) for server, told in found.items()]
    head = ["server", "seconds a round (median)", "slowest", "processor seconds a round (median)", "MiB in round 10",
            "MiB in the last round", *(["MiB of the client workers, then"] if arguments.real else []), "accuracy"]  # fmt: skip
    table(f"{arguments.clients} clients, 10 a round, {arguments.rounds} rounds, {where}", head, numbers)
    machine(busy)
    wall, cpu = (_ratio(found, clock) for clock in ("at", "cpu"))
    growth = float(numbers[1][5]) / float(numbers[1][4])
    print(
        f"fedveil takes {wall:.2f} times Flower's seconds a round and {cpu:.2f} times its processor seconds (goal: at most {RATIO})"
    )
    if arguments.rounds < 10:
        print("Too few rounds to judge by.")
        return
    require(cpu <= RATIO, "the goal of processor seconds was missed")
    if arguments.rounds >= FEWEST_ROUNDS:
        print(f"memory grew {growth:.2f} times from the tenth round to the last (goal: at most {GROWTH})")
        require(growth <= GROWTH, "the goal of memory was missed")
    if busy < 1.5:
        require(wall <= RATIO, "the goal of seconds was missed")
    else:
        print("The machine was busy with other work: its seconds judge nothing.")


def machine(busy: float) -> None:
    """What the figures are of."""
    names = {name: version(name) for name in ("flwr", "ray", "torch")}
    told = ", ".join(f"{name} {number}" for name, number in names.items())
    memory = psutil.virtual_memory().total / 2**30
    print(
        f"\nMachine: {os.cpu_count()} {platform.machine()} cores, {memory:.0f} GiB, load average {busy:.1f} at the start; "
        f"Python {platform.python_version()}, {told}"
    )


def _between(told: dict[str, Any], clock: str) -> list[float]:
    return [after - before for before, after in itertools.pairwise(told[clock])]


def _ratio(found: dict[str, dict[str, Any]], clock: str) -> float:
    return statistics.median(_between(found["fedveil"], clock)) / statistics.median(_between(found["flower"], clock))


def _row(server: str, told: dict[str, Any], *, real: bool) -> list[object]:
    seconds, cpu = _between(told, "at"), _between(told, "cpu")
    tenth = min(10, len(told["mib"]) - 1)
    return [
        server, f"{statistics.median(seconds):.2f}", f"{max(seconds):.2f}", f"{statistics.median(cpu):.2f}",
        f"{told['mib'][tenth]:.0f}", f"{told['mib'][-1]:.0f}",
        *([f"{told['workers'][tenth]:.0f}, {told['workers'][-1]:.0f}"] if real else []), f"{told['accuracy']:.3f}",
    ]  # fmt: skip


def _in_one_process(server: str, arguments: argparse.Namespace) -> dict[str, Any]:
    line = [sys.executable, __file__, server, str(arguments.clients), str(arguments.rounds)]
    done = subprocess.run(line, capture_output=True, text=True, check=False, cwd=ROOT)
    require(done.returncode == 0, f"{server}: {done.stderr[-3000:]}")
    told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return told


def fedveil(clients: int, rounds: int) -> dict[str, Any]:
    """The rounds of fedveil, with its rows, checkpoints and reports."""
    from reliability_plain import settings

    from simulations import audit
    from simulations.run_folder.run_directory import RunDirectory

    marks: list[dict[str, float]] = []
    complete = RunDirectory.write_progress

    def marked(self: Any, *args: Any, **kwargs: Any) -> None:
        complete(self, *args, **kwargs)
        marks.append(measured())

    RunDirectory.write_progress = marked  # type: ignore[method-assign]
    with tempfile.TemporaryDirectory() as folder:
        audit(out=Path(folder) / "run", **settings(clients, rounds))
        return columns(marks, rounds, last_accuracy(Path(folder) / "run"))


def flower(clients: int, rounds: int) -> dict[str, Any]:
    """The rounds of Flower's own FedAvg."""
    from reliability_plain import client, train_by_fedavg

    from simulations.runtime.local_grid import LocalGrid

    marks: list[dict[str, float]] = []
    accuracy = train_by_fedavg(LocalGrid(clients, app=client), clients, rounds, lambda: marks.append(measured()))
    return columns(marks, rounds, accuracy)


if __name__ == "__main__":
    print(json.dumps({"flower": flower, "fedveil": fedveil}[sys.argv[1]](int(sys.argv[2]), int(sys.argv[3]))))
