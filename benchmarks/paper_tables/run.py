"""Runs what the claims of the papers need, and keeps the few rows that they read.

    python benchmarks/paper_tables/run.py --list
    python benchmarks/paper_tables/run.py split_table4 adp_table5-full --seeds 0
    python benchmarks/paper_tables/run.py --hours 4

Named runs are repeated, in a folder OUT/NAME-seedN; without names the runs without a small file follow, the cheapest first. A
finished folder is read and not repeated, so that a run started by hand with the same name counts; a begun one is resumed. A run
that fails is noted, and the next begins. No run starts after the hours are over. Small files of finished runs stand in
benchmarks/results/paper_tables, of which write.py makes the page.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import catalogue
import records
from catalogue import Run

ROOT = Path(__file__).resolve().parents[2]


def command(run: Run, seed: int, folder: Path) -> list[str]:
    """What follows "python" in the command that makes a run's folder, or goes on with it."""
    fedveil = ["-m", "simulations.cli", "run"]
    if (folder / "config.json").is_file():
        return [*fedveil, "--resume", str(folder), "--in-process"]
    settings = [word for text in (*run.settings, f"seed={seed}") for word in ("-s", text)]
    return [
        *fedveil,
        f"simulations/configs/{run.name.partition('-')[0]}.toml",
        "--in-process",
        "--out",
        str(folder),
        *settings,
    ]


def finished(folder: Path) -> bool:
    """Whether the run of a folder is finished."""
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return bool(config.get("progress", {}).get("finished") is True)


def every_run() -> dict[str, Run]:
    """All runs by name."""
    return {name: run for paper in catalogue.papers() for name, run in paper.runs.items()}


def wanted(names: Sequence[str], seeds: Sequence[int], kept: Path = records.FOLDER) -> Iterator[tuple[Run, int]]:
    """Named runs, or those without a small file: all runs of the first seed, then of the next, each time the cheapest first."""
    runs = sorted(every_run().values(), key=lambda run: (run.seconds, run.name))
    there = {run.name: len(list(kept.glob(f"{run.name}-seed*.json"))) for run in runs}
    for seed in seeds:
        for run in runs:
            missing = there[run.name] < run.most_seeds and not (kept / f"{run.name}-seed{seed}.json").is_file()
            if run.name in names if names else missing:
                there[run.name] += 1
                yield run, seed


def start(run: Run, seed: int, folder: Path) -> bool:
    """Run to the end; whether it did. What it prints goes into a file beside the folder."""
    words = [sys.executable, *command(run, seed, folder)]
    began = time.monotonic()
    with (folder.parent / f"{folder.name}.log").open("a", encoding="utf-8") as log:
        code = subprocess.run(words, cwd=ROOT, stdout=log, stderr=subprocess.STDOUT, check=False).returncode
    print(f"{folder.name}: {time.monotonic() - began:.0f} s, exit code {code}", flush=True)
    return finished(folder)


def run_all(chosen: argparse.Namespace) -> list[str]:
    """Run and keep what the arguments name; the folders of failed runs."""
    until, failed = time.monotonic() + 3600 * chosen.hours, []
    chosen.out.mkdir(parents=True, exist_ok=True)
    for run, seed in wanted(chosen.names, chosen.seeds):
        folder = chosen.out.resolve() / f"{run.name}-seed{seed}"
        ready = finished(folder)
        if not ready and time.monotonic() < until:
            ready = start(run, seed, folder)
            failed += [] if ready else [folder.name]
        if ready:
            missing = records.keep(folder, run.name, seed, catalogue.cells_of(run.name))
            print(f"{folder.name}: kept" + "".join(f"\n    no row for {one}" for one in missing), flush=True)
    return failed


def main() -> None:
    """Reads the arguments; the exit code is 1 if a run failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="names of runs, as --list prints them; none for all that are left")
    parser.add_argument("--out", type=Path, default=ROOT / "runs" / "paper_tables", help="folder of the runs' folders")
    parser.add_argument(
        "--hours", type=float, default=24.0, help="no run starts after so many hours; 0 reads finished folders"
    )
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--list", action="store_true", help="print the command of every run that is left, and end")
    chosen = parser.parse_args()
    if unknown := set(chosen.names) - set(every_run()):
        parser.error(f"unknown runs: {', '.join(sorted(unknown))}")
    if chosen.list:
        for run, seed in wanted(chosen.names, chosen.seeds):
            print(f"python {' '.join(command(run, seed, chosen.out / f'{run.name}-seed{seed}'))}")
    elif failed := run_all(chosen):
        raise SystemExit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
