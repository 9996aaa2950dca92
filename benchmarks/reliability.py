"""Load and faults: what a run of fedveil does when much, or everything, goes wrong. Prints the tables of docs/reliability.md.

    python benchmarks/reliability.py load            1,000 clients, 10 a round, 50 rounds, beside Flower's own FedAvg;
                                                     --real on Flower's simulation runtime
    python benchmarks/reliability.py clients         a fifth of all answers fails, in five ways; --real with killed workers, too
    python benchmarks/reliability.py kills           kill -9 at 20 random moments of a run; --real N on Flower's runtime
    python benchmarks/reliability.py signals         the same by any signal, and of the processes that it starts; --real N likewise
    python benchmarks/reliability.py disk            a disk that fills up (a tmpfs, so root; Linux)
    python benchmarks/reliability.py folder          the output folder of a living run is deleted, replaced, or made unwritable
    python benchmarks/reliability.py two             two runs at once, in one folder and in two
    python benchmarks/reliability.py hostile         what a client and a server of ill will may send
    python benchmarks/reliability.py replies         clients' replies, spoilt at random, in whole runs; --first N --cases 1
                                                     repeats one
    python benchmarks/reliability.py files           damaged files, and the commands that read them

Every piece asserts what its table says, and ends with an error when that does not hold. All but ``load`` depend on no clock.
"""

from __future__ import annotations

import argparse
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
sys.path.insert(0, str(HERE))

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
    return subprocess.run(line, capture_output=True, text=True, timeout=ENDLESS, check=False, cwd=HERE.parent, **how)


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
        process = subprocess.Popen(line, stdout=file, stderr=file, start_new_session=True, cwd=HERE.parent)
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


# The way in ---------------------------------------------------------------------------------------------------------


def main() -> None:
    """Runs one piece."""
    from reliability_clients import clients
    from reliability_disk import disk, folder, two
    from reliability_files import files
    from reliability_kills import kills
    from reliability_load import load
    from reliability_replies import replies
    from reliability_signals import signals
    from reliability_wire import hostile

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    pieces = parser.add_subparsers(dest="piece", required=True)
    for piece in (load, clients, kills, disk, two, hostile, replies, files, signals, folder):
        one = pieces.add_parser(piece.__name__, help=(piece.__doc__ or "").splitlines()[0])
        one.set_defaults(run=piece)
        one.add_argument("--seed", type=int, default=0)
        if piece in (kills, signals):
            one.add_argument("--times", type=int, default=20)
            one.add_argument(
                "--real", type=int, default=0, help="further kills on Flower's runtime; about a minute each"
            )
        if piece is load:
            one.add_argument("--clients", type=int, default=1000)
            one.add_argument("--rounds", type=int, default=50)
        if piece in (replies, files, signals):
            one.add_argument("--cases", type=int, default=300)
            one.add_argument("--first", type=int, default=0, help="number of the first case")
            one.add_argument("--minutes", type=float, default=60.0, help="no further case begins after them")
            one.add_argument("--verbose", action="store_true", help="a line for each case")
        if piece is replies:
            one.add_argument("--runs", default="", help="kinds of runs, by commas; all without it")
        if piece is files:
            one.add_argument("--readers", default="", help="commands, by commas; all without it")
        if piece in (load, clients):
            one.add_argument("--real", action="store_true", help="on Flower's simulation runtime")
    arguments = parser.parse_args()
    arguments.run(arguments)


if __name__ == "__main__":
    main()
