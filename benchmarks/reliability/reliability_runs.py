"""What all pieces share: cases and the loop over them, commands that run fedveil, and what a run leaves behind."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from simulations.run_folder.checkpoints import Checkpoints

ROOT = Path(__file__).resolve().parents[2]
FEDVEIL = str(Path(sys.executable).parent / "fedveil")
GIB = 2**30
ENDLESS = 1800.0
"""Seconds after which a command counts as hung."""


class CaseError(AssertionError):
    """A case does not meet a requirement."""


def require(holds: bool, what: str) -> None:
    """Raise ``CaseError`` unless a requirement holds."""
    if not holds:
        raise CaseError(what)


@dataclass(frozen=True)
class Case:
    """One thing that is tried.

    Attributes:
        group: Line of the table that counts it.
        what: Its text says what was tried; it is printed afterwards.
        check: Tries it. Returns the outcome, and after ": " its details; raises ``CaseError``.
    """

    group: str
    what: object
    check: Callable[[], str]


def try_all(title: str, cases: Iterable[Case], arguments: argparse.Namespace) -> None:
    """Try cases one after the other, print a table of their outcomes, and exit with an error if one has a fault."""
    found, deadline = Counter[tuple[str, str]](), time.monotonic() + 60 * arguments.minutes
    for case in cases:
        try:
            outcome, _, details = case.check().partition(": ")
        except CaseError as fault:
            outcome, details = "FAULT", str(fault)
        found[case.group, outcome] += 1
        if arguments.verbose or outcome == "FAULT":
            print(f"{case.what} -> {outcome}: {details}", flush=True)
        if time.monotonic() > deadline:
            break
    outcomes = sorted({outcome for _, outcome in found})
    print(f"\n### {title} (seed {arguments.seed})\n\n| | {' | '.join(outcomes)} |\n|{'---|' * (len(outcomes) + 1)}")
    for group in dict.fromkeys(group for group, _ in found):
        print(f"| {group} | {' | '.join(str(found[group, outcome]) for outcome in outcomes)} |")
    faults = sum(count for (_, outcome), count in found.items() if outcome == "FAULT")
    if faults:
        sys.exit(f"FAILED: {faults} of {sum(found.values())} cases")


class Watch:
    """The most memory that this process takes beyond what it had at the start, in GiB, and its processor seconds."""

    def __enter__(self) -> Watch:
        self.start, self.before = time.process_time(), psutil.Process().memory_info().rss
        self.most, self._on = self.before, True
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()
        return self

    def _look(self) -> None:
        while self._on:
            self.most = max(self.most, psutil.Process().memory_info().rss)
            time.sleep(0.01)

    def __exit__(self, *_: object) -> None:
        self._on = False
        self._thread.join()
        self.gib, self.seconds = (self.most - self.before) / GIB, time.process_time() - self.start


def command(out: Path, settings: dict[str, Any], *, in_process: bool = True) -> list[str]:
    """``fedveil run`` of a new run; of a run that has begun, ``--resume``."""
    if (out / "config.json").is_file():
        line = [FEDVEIL, "run", "--resume", str(out)]
    else:
        line = [FEDVEIL, "run", "--out", str(out)]
        line += [part for key, value in settings.items() for part in ("-s", f"{key}={value}")]
    return [*line, *(["--in-process"] if in_process else [])]


def ended(line: list[str]) -> subprocess.CompletedProcess[str]:
    """Run a command that must end by itself."""
    return subprocess.run(line, capture_output=True, text=True, timeout=ENDLESS, check=False, cwd=ROOT)


def rows_of(out: Path) -> list[dict[str, Any]]:
    """The rows of a run, each line of which must be whole; numbers are floats, as in rows that a resumed run read back."""
    path = out / "rows.jsonl"
    lines = path.read_text(encoding="utf-8").split("\n")[:-1] if path.is_file() else []
    return [json.loads(line, parse_int=float) for line in lines]


def untimed(rows: list[dict[str, Any]]) -> list[str]:
    """Rows as sorted texts, without times."""
    kept = [row for row in rows if "second" not in row["metric"]]
    return sorted(json.dumps({k: v for k, v in row.items() if k != "seconds"}, sort_keys=True) for row in kept)


def failures(out: Path, metric: str) -> list[dict[str, Any]]:
    """Rows of failed clients or attacks."""
    return [row for row in rows_of(out) if row["status"] == "failed" and row["metric"] == metric]


def accuracy(rows: list[dict[str, Any]]) -> float:
    """Accuracy of the last model of a run without defences on unprotected images."""
    found = [row for row in rows if (row["metric"], row["reference"]) == ("test-accuracy", "original")]
    return float(max(found, key=lambda row: row["round"])["value"])


def is_finished(out: Path) -> bool:
    """Whether a run says that it has ended."""
    path = out / "config.json"
    return path.is_file() and bool(json.loads(path.read_text())["progress"].get("finished"))


def lost(out: Path, whole: list[dict[str, Any]]) -> list[str]:
    """Training rows of complete rounds that the uninterrupted run has and a broken run lacks."""
    path = out / "config.json"
    names = json.loads(path.read_text())["pipelines"] if path.is_file() else []
    done = {name: Checkpoints(out / "checkpoints").round_of(at) for at, name in enumerate(names)}
    mine = set(untimed(rows_of(out)))
    due = [row for row in whole if row["round"] <= done.get(row["defense"], -1) and not row["attack"]]
    return [text for text in untimed(due) if text not in mine]
