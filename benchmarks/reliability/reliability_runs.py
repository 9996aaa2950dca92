"""Runs for the pieces of reliability: commands that start and end them, and what they leave behind."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]


FEDVEIL = [str(Path(sys.executable).parent / "fedveil")]


SMALL: dict[str, Any] = {
    "dataset": "mnist-5k", "model": "lenet", "batch-size": 16, "learning-rate": 0.1, "momentum": 0.5, "train-limit": 400,
    "test-limit": 100, "rounds": 8, "local-epochs": 2, "defenses": "GaussianNoise(std=0.02)", "num-clients": 4,
    "probe-attacks": "InvertingGradients(iterations=30); LabelInference()", "update-attacks": "LabelInference()",
    "probe-targets": 1, "attack-rounds": "first,last", "adaptive": False, "attack-workers": 1,
}  # fmt: skip


ENDLESS = 1800.0
"""Seconds after which what has not ended hangs."""


def table(title: str, head: list[str], rows: list[list[object]]) -> None:
    """A Markdown table."""
    print(f"\n### {title}\n\n| {' | '.join(head)} |\n|{'---|' * len(head)}")
    for row in rows:
        print(f"| {' | '.join(map(str, row))} |")
    sys.stdout.flush()


def command(out: Path, settings: dict[str, Any], *, in_process: bool = True) -> list[str]:
    """``fedveil run`` of a new run."""
    pairs = [part for key, value in settings.items() for part in ("-s", f"{key}={value}")]
    return [*FEDVEIL, "run", "--out", str(out), *pairs, *(["--in-process"] if in_process else [])]


def resumed(out: Path, *, in_process: bool = True) -> list[str]:
    """``fedveil run --resume``."""
    return [*FEDVEIL, "run", "--resume", str(out), *(["--in-process"] if in_process else [])]


def ended(line: list[str], **how: Any) -> subprocess.CompletedProcess[str]:
    """A command that must end by itself."""
    return subprocess.run(line, capture_output=True, text=True, timeout=ENDLESS, check=False, cwd=ROOT, **how)


def rows_of(out: Path) -> list[dict[str, Any]]:
    """The rows of a run, every line of which must be whole; a number that was read back is no whole one any more."""
    path = out / "rows.jsonl"
    lines = path.read_text(encoding="utf-8").split("\n")[:-1] if path.is_file() else []
    return [json.loads(line, parse_int=float) for line in lines]


def untimed(rows: list[dict[str, Any]]) -> list[str]:
    """Rows without what a clock or the disk has a say in, as texts."""
    kept = []
    for row in rows:
        if "second" not in row["metric"]:
            kept.append(json.dumps({k: v for k, v in row.items() if k != "seconds"}, sort_keys=True))
    return sorted(kept)


def require(holds: bool, what: str) -> None:
    """Ends the script unless something holds."""
    if not holds:
        sys.exit(f"FAILED: {what}")


def complete_rounds(out: Path) -> dict[str, int]:
    """Pipeline -> the last round whose checkpoint is there."""
    from simulations.run_folder.checkpoints import Checkpoints

    kept = Checkpoints(out / "checkpoints")
    names = json.loads((out / "config.json").read_text())["pipelines"] if (out / "config.json").is_file() else []
    return {name: kept.round_of(at) for at, name in enumerate(names)}


def lost(out: Path, whole: list[dict[str, Any]]) -> list[str]:
    """Rows of training in complete rounds that the killed run does not have, though the unbroken one has them."""
    done, mine = complete_rounds(out), set(untimed(rows_of(out)))
    due = [row for row in whole if row["round"] <= done.get(row["defense"], -1) and not row["attack"]]
    return [text for text in untimed(due) if text not in mine]


@contextlib.contextmanager
def running(line: list[str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A command in a session of its own; whatever it leaves behind is ended on the way out."""
    with log.open("ab") as file:
        process = subprocess.Popen(line, stdout=file, stderr=file, start_new_session=True, cwd=ROOT)
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def begun(out: Path, process: subprocess.Popen[bytes]) -> bool:
    """Waits until a run has opened its folder; whether it has before it ended."""
    deadline = time.monotonic() + ENDLESS
    while process.poll() is None:
        require(time.monotonic() < deadline, "a run hangs before it opens its folder")
        with contextlib.suppress(OSError, psutil.Error):
            if any(file.path == str(out / ".lock") for file in psutil.Process(process.pid).open_files()):
                return True
        time.sleep(0.02)
    return False


def columns(marks: list[dict[str, float]], rounds: int, accuracy: float) -> dict[str, Any]:
    """Marks of the rounds: one before the first, and one when each has ended; behind them come the last reports."""
    require(len(marks) > rounds, f"{len(marks)} marks of {rounds} rounds")
    return {name: [one[name] for one in marks[: rounds + 1]] for name in marks[0]} | {"accuracy": accuracy}


def last_accuracy(out: Path) -> float:
    """Of the last model of a run without defences, on clean images."""
    rows = [row for row in rows_of(out) if row["metric"] == "test-accuracy" and row["reference"] == "original"]
    return float(max(rows, key=lambda row: row["round"])["value"])
