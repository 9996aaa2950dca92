"""The pieces of benchmarks/reliability/reliability.py about runs that are killed, in one process and on Flower's runtime."""

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
from pathlib import Path
from typing import Any

import psutil
from reliability_runs import (
    ENDLESS,
    SMALL,
    begun,
    command,
    complete_rounds,
    ended,
    lost,
    require,
    resumed,
    rows_of,
    running,
    table,
    untimed,
)


def kills(arguments: argparse.Namespace) -> None:
    """One run is killed and resumed, each time further on; its rows are compared with those of an unbroken one."""
    draw = random.Random(arguments.seed)
    with tempfile.TemporaryDirectory() as folder:
        whole, out = Path(folder) / "whole", Path(folder) / "run"
        done = ended(command(whole, SMALL))
        require(done.returncode == 0, f"the unbroken run: {done.stderr}")
        reference, events, line = rows_of(whole), list[list[object]](), command(out, SMALL)
        require(len(reference) > arguments.times, f"the unbroken run has {len(reference)} rows")
        for at in range(arguments.times):
            # One moment in each part of the run: a number of rows, which come in bursts, and a little later.
            low, high = (len(reference) * part // arguments.times for part in (at, at + 1))
            rows, later = draw.randrange(low, high), draw.uniform(0, 0.2)
            with running(line, Path(folder) / "log") as process:
                require(begun(out, process), "the run ended before it began")
                wait(process, out, rows, later)
                if process.poll() is not None:
                    break
                process.kill() if draw.random() < 0.5 else os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            events.append(_after(out, reference, f"row {rows} and {later:.2f} s"))
            line = resumed(out) if (out / "config.json").is_file() else command(out, SMALL)
        done = ended(line)
        require(done.returncode == 0, f"the run ended with {done.returncode}: {done.stderr}")
        odd = sorted(set(untimed(rows_of(out))) ^ set(untimed(reference)))
        require(not odd, f"the run has other rows than an unbroken one: {len(odd)}, such as {odd[:2]}")
        require(not list(out.rglob("*.tmp")), f"the run left {list(out.rglob('*.tmp'))}")
        table(f"kill -9 at {len(events)} random moments of one run (seed {arguments.seed})",
              ["moment", "last complete round (no defence, noise)", "rows on disk",
               "rows of complete rounds lost"],
              events)  # fmt: skip
        print(f"\nIt was resumed to its end; its {len(reference)} rows are those of an unbroken run.")
    if arguments.real:
        real_kills(arguments)


def _after(out: Path, reference: list[dict[str, Any]], moment: str) -> list[object]:
    """What a kill left; every file that a reader may meet must be whole."""
    rows, missing = rows_of(out), lost(out, reference)
    require(
        not missing,
        f"{moment}: {len(missing)} rows of complete rounds are lost, such as {missing[:2]}; there are {rows[-2:]}",
    )
    return [moment, ", ".join(map(str, complete_rounds(out).values())) or "-", len(rows), len(missing)]


def real_kills(arguments: argparse.Namespace) -> None:
    """The same on Flower's runtime: the command alone, and the command with all that it started."""
    draw, found = random.Random(arguments.seed), list[list[object]]()
    settings = {**SMALL, "rounds": 6}
    with tempfile.TemporaryDirectory() as folder:
        whole = Path(folder) / "whole"
        require(ended(command(whole, settings)).returncode == 0, "the unbroken run")
        reference = rows_of(whole)
        for at in range(arguments.real):
            out, alone = Path(folder) / f"real{at}", at % 2 == 0
            rows, later = draw.randrange(len(reference)), draw.uniform(0, 2)
            with running(command(out, settings, in_process=False), Path(folder) / "log") as process:
                wait(process, out, rows, later)
                broken = process.poll() is None
                if broken:
                    homes = _killed(process, alone=alone)
                    seconds = _gone(homes)
                    left = _after(out, reference, "")
            if not broken:
                found.append(["nothing: it had ended", "-", len(rows_of(out)), 0, "-"])
                continue
            if not json.loads((out / "config.json").read_text())["progress"].get("finished"):
                again = ended(resumed(out, in_process=False))
                require(again.returncode == 0, f"resumed: {again.stdout} {again.stderr}")
            require(untimed(rows_of(out)) == untimed(reference), "a resumed run has other rows than an unbroken one")
            found.append(["the command alone" if alone else "with all it started", *left[1:], f"{seconds:.0f} s"])
        table(f"kill -9 on Flower's runtime, {arguments.real} times (seed {arguments.seed})",
              ["what was killed", "last complete round (no defence, noise)", "rows on disk", "rows of complete rounds lost",
               "processes and temporary folder gone after"],
              found)  # fmt: skip
        print(
            f"\nAll were resumed to their end; their {len(reference)} rows are those of an unbroken run in one process."
        )


def wait(process: subprocess.Popen[bytes], out: Path, rows: int, later: float) -> None:
    """Until a run has begun, has written as many rows, and some seconds more, or has ended."""
    deadline = time.monotonic() + ENDLESS
    while process.poll() is None and not ((out / "config.json").is_file() and _rows(out) >= rows):
        require(time.monotonic() < deadline, f"a run hangs before its row {rows}")
        time.sleep(0.02)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(later)


def _rows(out: Path) -> int:
    """How many rows a run has written; the last line may still be on its way."""
    path = out / "rows.jsonl"
    return path.read_bytes().count(b"\n") if path.is_file() else 0


def _killed(process: subprocess.Popen[bytes], *, alone: bool) -> set[Any]:
    """Kills a command, and what it started unless ``alone``; the homes of its runtime."""
    homes = set()
    for one in psutil.Process(process.pid).children(recursive=True):
        with contextlib.suppress(psutil.Error):
            homes.add(one.environ().get("FLWR_HOME"))
    homes -= {None}
    require(len(homes) == 1, f"a run has homes {homes}")
    process.kill()
    for one in [] if alone else of_homes(homes):
        with contextlib.suppress(psutil.Error):
            one.kill()
    process.wait()
    return homes


def _gone(homes: set[Any]) -> float:
    """Seconds until nothing of a runtime is left."""
    start = time.monotonic()
    while of_homes(homes) or any(Path(home).exists() for home in homes):
        require(time.monotonic() - start < ENDLESS, f"left behind: {of_homes(homes)}")
        time.sleep(0.5)
    return time.monotonic() - start


def of_homes(homes: set[Any]) -> list[psutil.Process]:
    """Living processes of these runtimes."""
    found = []
    for one in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if one.environ().get("FLWR_HOME") in homes and one.status() != psutil.STATUS_ZOMBIE:
                found.append(one)
    return found
