"""The piece of benchmarks/reliability/reliability.py about signals: the command, and the processes that it started, ended at
random moments.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import subprocess
import tempfile
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from reliability_kills import wait
from reliability_runs import ENDLESS, ROOT, SMALL, command, ended, lost, require, resumed, rows_of, table, untimed

MARK = "FEDVEIL_BENCHMARK"
"""Variable in the environment of all that a command starts."""
SETTINGS: dict[str, Any] = SMALL | {"rounds": 4}
COMMAND, EVERYTHING = "the command", "the command's process group"
VICTIMS = {
    "an attack worker": "multiprocessing.spawn",
    "a client worker": "ray::ClientApp",
    "an attack actor": "ray::_Worker",
    "the simulation": "flwr-simulation",
    "the SuperLink": "flower-superlink",
}
"""Process -> what its command line holds."""
HERE_ONLY, THERE_ONLY = ("an attack worker",), ("a client worker", "an attack actor", "the simulation", "the SuperLink")
ENDINGS = ("SIGKILL", "SIGTERM", "SIGINT", "SIGHUP")
CODES = {"SIGKILL": -signal.SIGKILL, "SIGTERM": 128 + signal.SIGTERM, "SIGINT": 130, "SIGHUP": 128 + signal.SIGHUP}
"""How a command ends by one, or by itself had it ended before."""
CLEAN = 90.0
"""Seconds in which whatever a command left must end."""


@dataclass(frozen=True)
class Event:
    """What is ended, how and when.

    Attributes:
        victim: A key of ``VICTIMS``, ``COMMAND`` or ``EVERYTHING``.
        by: Name of the signal.
        rows: Rows that the run has written by then.
        later: Seconds after that.
    """

    victim: str
    by: str
    rows: int
    later: float


def drawn(seed: int, number: int, rows: int, *, in_process: bool) -> Event:
    """The event of a number; the victims take turns, so that few events have each of them."""
    draw = random.Random(f"signals {seed} {number} {in_process}")
    victims = (COMMAND, EVERYTHING, *(HERE_ONLY if in_process else THERE_ONLY))
    victim = victims[number % len(victims)]
    by = draw.choice(ENDINGS if victim in (COMMAND, EVERYTHING) else ENDINGS[:2])
    return Event(victim, by, draw.randrange(rows), draw.uniform(0, 0.3 if in_process else 2.0))


@contextlib.contextmanager
def marked(line: list[str], place: Path, log: Path) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """A command in a session of its own, whose processes are known by a mark, and whose temporary files go to ``place``."""
    mark = uuid.uuid4().hex
    place.mkdir(exist_ok=True)
    env = os.environ | {MARK: mark, "TMPDIR": str(place)}
    with log.open("wb") as file:
        process = subprocess.Popen(line, stdout=file, stderr=file, start_new_session=True, cwd=ROOT, env=env)
    try:
        yield process, mark
    finally:
        for one in of_mark(mark):
            with contextlib.suppress(psutil.Error):
                one.kill()
        process.wait()


def of_mark(mark: str) -> list[psutil.Process]:
    """Living processes of a command."""
    found = []
    for one in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if one.environ().get(MARK) == mark and one.status() != psutil.STATUS_ZOMBIE:
                found.append(one)
    return found


def _strike(event: Event, process: subprocess.Popen[bytes], mark: str) -> bool:
    """Sends the signal; False: there is no such process now."""
    number = getattr(signal, event.by)
    if event.victim == COMMAND:
        process.send_signal(number)
        return True
    if event.victim == EVERYTHING:
        os.killpg(process.pid, number)
        return True
    for one in of_mark(mark):
        with contextlib.suppress(psutil.Error):
            if VICTIMS[event.victim] in " ".join([one.name(), *one.cmdline()]):
                one.send_signal(number)
                return True
    return False


def _strike_soon(event: Event, process: subprocess.Popen[bytes], mark: str) -> bool:
    """The same once there is one, before the command ends."""
    while process.poll() is None:
        if _strike(event, process, mark):
            return True
        time.sleep(0.02)
    return False


def _left(mark: str, place: Path) -> float:
    """Seconds until no process and no temporary file of a command is left; the script ends where that takes too long."""
    start = time.monotonic()
    while True:
        # torch keeps what it compiles in a folder of its own, whoever uses it.
        alive, files = (
            of_mark(mark),
            [path.name for path in place.iterdir() if not path.name.startswith("torchinductor_")],
        )
        if not alive and not files:
            break
        told = files + [str(one.pid) for one in alive]
        require(time.monotonic() - start < CLEAN, f"left behind: {told}")
        time.sleep(0.2)
    return time.monotonic() - start


def _one(event: Event, folder: Path, reference: list[dict[str, Any]], *, in_process: bool) -> list[object]:
    """Runs until the event, and on: what was left, and whether the resumed run has the rows of an unbroken one."""
    out, log, what = folder / "run", folder / "log", f"{event}"
    with marked(command(out, SETTINGS, in_process=in_process), folder / "t", log) as (process, mark):
        wait(process, out, event.rows, event.later)
        struck = _strike_soon(event, process, mark)
        code = process.wait(ENDLESS)
        seconds = _left(mark, folder / "t")
    text = log.read_text(errors="replace")
    if event.victim in (COMMAND, EVERYTHING) and struck:
        require(code in (CODES[event.by], 0, 3), f"{what}: exit code {code}: {text[-1500:]}")
    else:
        require(code in (0, 1, 3), f"{what}: exit code {code}: {text[-1500:]}")
    require(event.by == "SIGKILL" or "Traceback" not in text, f"{what}: {text[-3000:]}")
    missing, rows = lost(out, reference), len(rows_of(out))
    lost_by_client = _failed(out, "client")
    require(
        not missing or bool(lost_by_client),
        f"{what}: {len(missing)} rows of complete rounds are lost, such as {missing[:1]}",
    )
    finished = (out / "config.json").is_file() and json.loads((out / "config.json").read_text())["progress"].get(
        "finished"
    )
    if not finished:
        begun = (out / "config.json").is_file()
        again = ended(resumed(out, in_process=in_process) if begun else command(out, SETTINGS, in_process=in_process))
        require(again.returncode in (0, 3), f"{what}, resumed: {again.stdout[-1000:]} {again.stderr[-2000:]}")
    failed = _failed(out, "attack") + lost_by_client
    odd = set(untimed(rows_of(out))) ^ set(untimed(reference))
    require(
        bool(failed) or not odd,
        f"{what}: {len(odd)} rows are others than those of an unbroken run, such as {sorted(odd)[:2]}",
    )
    ending = f"{len(failed)} rows say what was lost" if failed else "the rows of an unbroken run"
    return [
        event.victim if struck else f"nothing: {event.victim} had ended",
        event.by,
        rows,
        code,
        f"{seconds:.0f} s",
        ending,
    ]


def _failed(out: Path, metric: str) -> list[str]:
    return [row["message"] for row in rows_of(out) if row["status"] == "failed" and row["metric"] == metric]


def signals(arguments: argparse.Namespace) -> None:
    """SIGKILL, SIGTERM, Ctrl-C and SIGHUP to the command, its group, and the processes that it started."""
    with tempfile.TemporaryDirectory() as place:
        whole = Path(place) / "whole"
        require(ended(command(whole, SETTINGS)).returncode == 0, "the unbroken run")
        reference = rows_of(whole)
        for in_process, times in ((True, arguments.times), (False, arguments.real)):
            found = list[list[object]]()
            for number in range(arguments.first, arguments.first + times):
                event = drawn(arguments.seed, number, len(reference), in_process=in_process)
                folder = Path(place) / f"{number}-{'here' if in_process else 'flower'}"
                folder.mkdir()
                found.append(_one(event, folder, reference, in_process=in_process))
                print(f"event {number}: {event} -> {found[-1]}", flush=True)
            if found:
                table(
                    f"Signals, {'in one process' if in_process else 'on the runtime of Flower'} (seed {arguments.seed})",
                    [
                        "what was sent a signal",
                        "which",
                        "rows on disk",
                        "exit code of the command",
                        "processes and files gone after",
                        "then, resumed where it had to be",
                    ],
                    found,
                )
