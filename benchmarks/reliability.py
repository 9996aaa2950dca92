"""Load and faults: what a run of fedveil does when much, or everything, goes wrong. Prints the tables of docs/reliability.md.

    python benchmarks/reliability.py load            1,000 clients, 10 a round, 50 rounds, beside Flower's own FedAvg
    python benchmarks/reliability.py clients         a fifth of all answers fail, in five ways
    python benchmarks/reliability.py kills           kill -9 at 20 random moments of a run; --real N on Flower's runtime
    python benchmarks/reliability.py disk            a disk that fills up (a tmpfs, so root; Linux)
    python benchmarks/reliability.py two             two runs at once, in one folder and in two
    python benchmarks/reliability.py hostile         what a client and a server of ill will may send

Every piece asserts what its table says, and ends with an error when that does not hold. All but ``load`` depend on no clock.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
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
ENDLESS = 600.0
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
    """The rows of a run, every line of which must be whole."""
    path = out / "rows.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []


def untimed(rows: list[dict[str, Any]]) -> list[str]:
    """Rows without what a clock or the disk has a say in, as texts."""
    kept = []
    for row in rows:
        if row["metric"] not in ("attack-seconds", "train-seconds"):
            kept.append(json.dumps({k: v for k, v in row.items() if k != "seconds"}, sort_keys=True))
    return sorted(kept)


def require(holds: bool, what: str) -> None:
    """Ends the script unless something holds."""
    if not holds:
        sys.exit(f"FAILED: {what}")


# kill -9 ------------------------------------------------------------------------------------------------------------


def complete_rounds(out: Path) -> dict[str, int]:
    """Pipeline -> the last round whose checkpoint is there."""
    from simulations.checkpoints import Checkpoints

    kept = Checkpoints(out / "checkpoints")
    names = json.loads((out / "config.json").read_text())["pipelines"] if (out / "config.json").is_file() else []
    return {name: kept.round_of(at) for at, name in enumerate(names)}


def lost(out: Path, whole: list[dict[str, Any]]) -> int:
    """Rows of training in complete rounds that the killed run does not have, though the unbroken one has them."""
    done, mine = complete_rounds(out), set(untimed(rows_of(out)))
    due = [row for row in whole if row["round"] <= done.get(row["defense"], -1) and not row["attack"]]
    return sum(text not in mine for text in untimed(due))


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
    while process.poll() is None:
        with contextlib.suppress(OSError, psutil.Error):
            if any(file.path == str(out / ".lock") for file in psutil.Process(process.pid).open_files()):
                return True
        time.sleep(0.02)
    return False


def kills(arguments: argparse.Namespace) -> None:
    """One run after the other is killed and resumed until as many kills are done; the rows are compared with unbroken ones."""
    draw = random.Random(arguments.seed)
    with tempfile.TemporaryDirectory() as folder:
        whole = Path(folder) / "whole"
        start = time.monotonic()
        done = ended(command(whole, SMALL))
        require(done.returncode == 0, f"the unbroken run: {done.stderr}")
        duration = max(2.0, time.monotonic() - start - 8.0)
        reference, events, runs = rows_of(whole), list[list[object]](), 0
        require(len(reference) > 0, "the unbroken run has rows")
        while len(events) < arguments.times:
            runs += 1
            out = Path(folder) / f"run{runs}"
            line = command(out, SMALL)
            while True:
                with running(line, Path(folder) / "log") as process:
                    if len(events) < arguments.times and begun(out, process):
                        after = draw.uniform(0, duration / 2)
                        with contextlib.suppress(subprocess.TimeoutExpired):
                            process.wait(after)
                        if process.poll() is None:
                            process.kill() if draw.random() < 0.5 else os.killpg(process.pid, signal.SIGKILL)
                            process.wait()
                            events.append(_after(out, reference, f"run {runs}, {after:.1f} s"))
                            line = resumed(out) if (out / "config.json").is_file() else command(out, SMALL)
                            continue
                    code = process.wait(ENDLESS)
                require(code == 0, f"run {runs} ended with {code}: {(Path(folder) / 'log').read_text()[-2000:]}")
                break
            require(untimed(rows_of(out)) == untimed(reference), f"run {runs} has other rows than an unbroken one")
            require(not list(out.rglob("*.tmp")), f"run {runs} left {list(out.rglob('*.tmp'))}")
        table(f"kill -9 at {len(events)} random moments, {runs} runs (seed {arguments.seed})",
              ["moment after the folder was opened", "last complete round (no defence, noise)", "rows on disk", "rows of complete rounds lost"],
              events)  # fmt: skip
        print(f"\nAll {runs} runs were resumed to their end; their {len(reference)} rows are those of an unbroken run.")
    if arguments.real:
        real_kills(arguments)


def _after(out: Path, reference: list[dict[str, Any]], moment: str) -> list[object]:
    """What a kill left; every file that a reader may meet must be whole."""
    rows, missing = rows_of(out), lost(out, reference)
    require(missing == 0, f"{moment}: {missing} rows of complete rounds are lost")
    return [moment, ", ".join(map(str, complete_rounds(out).values())) or "-", len(rows), missing]


def real_kills(arguments: argparse.Namespace) -> None:
    """The same on Flower's runtime: the command alone, and the command with all that it started."""
    draw, found = random.Random(arguments.seed), list[list[object]]()
    settings = {**SMALL, "attack-workers": 1, "rounds": 6}
    with tempfile.TemporaryDirectory() as folder:
        whole = Path(folder) / "whole"
        require(ended(command(whole, settings)).returncode == 0, "the unbroken run")
        for at in range(arguments.real):
            out, alone = Path(folder) / f"real{at}", at % 2 == 0
            with running(command(out, settings, in_process=False), Path(folder) / "log") as process:
                while process.poll() is None and not (out / "config.json").is_file():
                    time.sleep(0.1)
                time.sleep(draw.uniform(0, 4))
                require(
                    process.poll() is None,
                    f"the run ended before it was killed: {Path(folder, 'log').read_text()[-1500:]}",
                )
                family = psutil.Process(process.pid).children(recursive=True)
                homes = {one.environ().get("FLWR_HOME") for one in family if one.is_running()} - {None}
                process.kill()
                if not alone:
                    for one in of_homes(homes):
                        with contextlib.suppress(psutil.Error):
                            one.kill()
                process.wait()
                killed, seconds = time.monotonic(), ""
                while of_homes(homes) and time.monotonic() - killed < ENDLESS:
                    time.sleep(0.5)
                seconds = f"{time.monotonic() - killed:.0f} s" if not of_homes(homes) else "still there"
                row = _after(out, rows_of(whole), "")
            for one in of_homes(homes):
                one.kill()
            if not json.loads((out / "config.json").read_text())["progress"].get("finished"):
                again = ended(resumed(out, in_process=False))
                require(again.returncode == 0, f"resumed: {again.stderr}")
            require(
                untimed(rows_of(out)) == untimed(rows_of(whole)), "a resumed run has other rows than an unbroken one"
            )
            found.append(["the command alone" if alone else "with all it started", *row[1:], seconds])
        table(f"kill -9 on Flower's runtime, {arguments.real} times",
              ["what was killed", "last complete round", "rows on disk", "rows lost", "its processes were gone after"], found)  # fmt: skip


def of_homes(homes: set[Any]) -> list[psutil.Process]:
    """Living processes of these runtimes."""
    found = []
    for one in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if one.environ().get("FLWR_HOME") in homes and one.status() != psutil.STATUS_ZOMBIE:
                found.append(one)
    return found


# The way in ---------------------------------------------------------------------------------------------------------


def main() -> None:
    """Runs one piece."""
    from reliability_disk import disk, two
    from reliability_load import clients, load
    from reliability_wire import hostile

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    pieces = parser.add_subparsers(dest="piece", required=True)
    for piece in (load, clients, kills, disk, two, hostile):
        one = pieces.add_parser(piece.__name__, help=(piece.__doc__ or "").splitlines()[0])
        one.set_defaults(run=piece)
        one.add_argument("--seed", type=int, default=0)
        if piece is kills:
            one.add_argument("--times", type=int, default=20)
            one.add_argument(
                "--real", type=int, default=0, help="further kills on Flower's runtime; about a minute each"
            )
        if piece is load:
            one.add_argument("--clients", type=int, default=1000)
            one.add_argument("--rounds", type=int, default=50)
    arguments = parser.parse_args()
    arguments.run(arguments)


if __name__ == "__main__":
    main()
