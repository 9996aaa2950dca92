"""What a person waits for, beside what they would use instead: each work a ratio of two commands, on an idle machine.

A work has a side of ours and one of a peer, each in a new process, in turn, ``--repeats`` times. Seconds are what the side says it
took (without imports, data and installation, unless these are what is measured), memory is the largest resident set of one process:
its own, or one that it started. The table has medians with their smallest and largest ratio; a side whose package is not installed
leaves its work out, with the reason.

    uv run --with breaching==0.1.2 --with jax-privacy python benchmarks/speed.py
    PYTHONPATH=a/clone/of/LeakPro python benchmarks/speed.py "inversion, lenet, batch of 1, LeakPro"
    python benchmarks/speed.py "page of 10,000 rows" "fedveil --help" --repeats 5 --device cuda
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(Path(__file__).resolve().parent), str(ROOT)]
sys.modules["speed"] = sys.modules[__name__]  # Rooms import what is below from here, also where this is the script.
ROOMS = ("inversions", "exact", "dp_steps", "federations", "audits", "pages")
"""Modules of ``speed_works`` in the order of the table, each with its ``WORKS``."""
MEBI = 2**20


@dataclass(frozen=True)
class Took:
    """Seconds of one side, and what it got in words (such as "14.1 dB")."""

    seconds: float
    got: str = ""


@dataclass(frozen=True)
class Work:
    """Two sides of one work.

    Attributes:
        name: In the table, and on the command line.
        beside: What the peer is, with its version.
        goal: Largest ratio (ours / the peer's) that is wanted; without a peer, seconds.
        ours: Does the work on a device and says how long it took.
        theirs: The same by the peer; ``ImportError`` where it is not installed; None: nothing does it.
    """

    name: str
    beside: str
    goal: float
    ours: Callable[[str], Took]
    theirs: Callable[[str], Took] | None


def works() -> dict[str, Work]:
    """All works by name."""
    return {work.name: work for room in ROOMS for work in import_module(f"speed_works.{room}").WORKS}


def side(work: Work, name: str, device: str) -> dict[str, Any]:
    """One side's line: its own process is this one."""
    if getattr(work, name) is None:
        return {"seconds": 1.0, "got": "", "peak": 0.0}
    try:
        took = getattr(work, name)(device)
    except ImportError as error:
        return {"missing": str(error)}
    peak = max(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)) * 1024
    return {**asdict(took), "peak": peak / MEBI}


def in_process_of_its_own(work: Work, name: str, device: str) -> dict[str, Any]:
    """The line of a side from a new process."""
    command = [sys.executable, __file__, work.name, "--side", name, "--device", device]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        return {"missing": (done.stderr.strip().splitlines() or ["no reason given"])[-1]}
    line: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return line


def row(work: Work, lines: list[dict[str, Any]]) -> list[str]:
    """Of the table: what a work took on both sides."""
    sides = {name: [line[name] for line in lines] for name in ("ours", "theirs")}
    missing = [one["missing"] for both in sides.values() for one in both if "missing" in one]
    if missing:
        return [work.name, work.beside, str(len(lines)), "", "", missing[0], f"{work.goal:g}", "", ""]
    ratios = [ours["seconds"] / theirs["seconds"] for ours, theirs in zip(*sides.values(), strict=True)]
    seconds = [f"{statistics.median(one['seconds'] for one in both):.3g} s" for both in sides.values()]
    peaks = [f"{max(one['peak'] for one in both):,.0f}" for both in sides.values()]
    got = list(dict.fromkeys(f"{ours['got']} / {theirs['got']}" for ours, theirs in zip(*sides.values(), strict=True)))
    return [
        work.name, work.beside, str(len(lines)), *seconds,
        f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})", f"{work.goal:g}",
        " / ".join(peaks), "; ".join(got) if got != [" / "] else "",
    ]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("works", nargs="*", help="names of works; none: all")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument(
        "--lines", type=Path, default=Path("speed.jsonl"), help="what was measured; a stopped run goes on"
    )
    parser.add_argument("--side", choices=("ours", "theirs"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    known = works()
    if unknown := sorted(set(options.works) - set(known)):
        parser.error(f"unknown works {', '.join(unknown)}; allowed: {', '.join(known)}")
    chosen = [known[name] for name in options.works] or list(known.values())
    if options.side:
        print(json.dumps(side(chosen[0], options.side, options.device)))
        return
    from studies import add_lines, lines_of, table  # which imports torch: no side is to hold more than it needs

    measured = defaultdict[str, list[dict[str, Any]]](list)
    for line in lines_of(options.lines):
        measured[line["work"]].append(line)
    for work in chosen:
        while len(measured[work.name]) < options.repeats:
            line = {"work": work.name} | {
                name: in_process_of_its_own(work, name, options.device) for name in ("ours", "theirs")
            }
            add_lines(options.lines, [line])
            measured[work.name].append(line)
            print(json.dumps(line), file=sys.stderr, flush=True)
    header = ["work", "beside", "n", "fedveil", "peer", "ratio (range)", "goal", "peak, MiB", "got"]
    print(table(header, [row(work, measured[work.name]) for work in chosen]))


if __name__ == "__main__":
    main()
