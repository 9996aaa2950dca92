"""Runs what the catalogue of tables and figures needs, and keeps the few rows that its claims read.

    python benchmarks/paper_tables/run.py --list
    python benchmarks/paper_tables/run.py --out FOLDER --hours 4
    python benchmarks/paper_tables/run.py --out FOLDER --hours 1 --only split_table4 adp_table5-full --seeds 0

One run of one seed follows the other, the cheapest first, in a folder FOLDER/NAME-seedN. A finished folder is read and not
repeated, so that a run started by hand with the same name counts; a begun one is resumed. A run that fails is noted, and the next
begins. No run starts after the hours are over. Small files of finished runs stand in benchmarks/results/paper_tables, of which
write.py makes the page.
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
from entry import Run
from verdict import cells_of

ROOT = Path(__file__).resolve().parents[2]


def command(run: Run, seed: int, folder: Path) -> list[str]:
    """What follows "python" in the command that makes a run's folder, or goes on with it."""
    if run.script:
        return [f"benchmarks/paper_tables/{run.script}", "--seed", str(seed)]
    fedveil = ["-m", "simulations.cli", "run"]
    if (folder / "config.json").is_file():
        return [*fedveil, "--resume", str(folder), "--in-process"]
    settings = [word for text in (*run.settings, f"seed={seed}") for word in ("-s", text)]
    return [*fedveil, f"simulations/configs/{run.config}.toml", "--in-process", "--out", str(folder), *settings]


def finished(folder: Path) -> bool:
    """Whether the run of a folder is finished."""
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return bool(config.get("progress", {}).get("finished") is True)


def left(seeds: Sequence[int], only: Sequence[str], kept: Path) -> Iterator[tuple[Run, int]]:
    """Runs and seeds without a small file: all runs of the first seed, then those of the next, each time the cheapest first."""
    there = {run.name: len(list(kept.glob(f"{run.name}-seed*.json"))) for run in catalogue.runs()}
    for seed in seeds:
        for run in catalogue.runs():
            wanted = run.name in only if only else there[run.name] < run.most_seeds
            if wanted and not (kept / f"{run.name}-seed{seed}.json").is_file():
                there[run.name] += 1
                yield run, seed


def keep(run: Run, seed: int, folder: Path, kept: Path) -> None:
    """Write the small file of a finished run, and print cells without a row."""
    cells = cells_of((*catalogue.ENTRIES, *catalogue.BEYOND), run.name)
    missing = records.write(folder, run.name, seed, cells, kept)
    print(f"{folder.name}: kept" + "".join(f"\n    no row for {one}" for one in missing), flush=True)


def start(run: Run, seed: int, folder: Path) -> bool:
    """Run to the end; whether it did. What it prints goes into a file beside the folder."""
    words = [sys.executable, *command(run, seed, folder)]
    began = time.monotonic()
    with (folder.parent / f"{folder.name}.log").open("a", encoding="utf-8") as log:
        code = subprocess.run(words, cwd=ROOT, stdout=log, stderr=subprocess.STDOUT, check=False).returncode
    print(f"{folder.name}: {time.monotonic() - began:.0f} s, exit code {code}", flush=True)
    return code == 0 if run.script else finished(folder)


def main() -> None:
    """Reads the arguments; the exit code is 1 if a run failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="folder of the runs' folders")
    parser.add_argument(
        "--hours", type=float, default=0.0, help="no run starts after so many hours; 0 reads finished folders alone"
    )
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="names of runs, as --list prints them")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--list", action="store_true", help="print the command of every run that is left, and end")
    chosen = parser.parse_args()
    unknown = set(chosen.only) - {run.name for run in catalogue.runs()}
    if unknown:
        parser.error(f"unknown runs: {', '.join(sorted(unknown))}")
    if chosen.list:
        for run, seed in left(chosen.seeds, chosen.only, records.FOLDER):
            folder = (chosen.out or Path("FOLDER")) / f"{run.name}-seed{seed}"
            print(f"python {' '.join(command(run, seed, folder))}")
        return
    if chosen.out is None:
        parser.error("--out is missing")
    chosen.out.mkdir(parents=True, exist_ok=True)
    until, failed = time.monotonic() + 3600 * chosen.hours, []
    for run, seed in left(chosen.seeds, chosen.only, records.FOLDER):
        folder = chosen.out.resolve() / f"{run.name}-seed{seed}"
        ready = finished(folder)
        if not ready and time.monotonic() < until:
            ready = start(run, seed, folder)
            failed += [] if ready else [folder.name]
        if ready and not run.script:
            keep(run, seed, folder, records.FOLDER)
    if failed:
        raise SystemExit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
