"""The pieces of benchmarks/reliability/reliability.py about a disk that fills up, and about two runs at once."""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from reliability_kills import wait
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

LEFT = (0.0, 0.01, 0.05, 0.2, 0.5, 0.9)
"""What is left on the disk when a run begins, of all that it will write."""
ROOM = 65_536
"""KiB of the disk."""


@contextlib.contextmanager
def small_disk(place: Path) -> Iterator[Path]:
    """A tmpfs of ``ROOM`` KiB; needs root."""
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={ROOM}k", "tmpfs", str(place)], check=True)
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


def disk(_: argparse.Namespace) -> None:
    """A run on a disk that is full sooner or later; room is made and the run resumed."""
    found: list[list[object]] = []
    with tempfile.TemporaryDirectory() as folder:
        whole = Path(folder) / "whole"
        require(ended(command(whole, SMALL)).returncode == 0, "the unbroken run")
        reference = rows_of(whole)
        size = sum(path.stat().st_size for path in whole.rglob("*") if path.is_file())
        for share in LEFT:
            left = int(share * size / 1024)
            with small_disk(Path(folder) / f"disk{left}") as place:
                ballast, out = place / "ballast", place / "run"
                ballast.write_bytes(b"\0" * (1024 * (ROOM - left)))
                full = ended(command(out, SMALL))
                require(full.returncode == 1, f"{left} KiB left: code {full.returncode}, {full.stderr[-1500:]}")
                require("No space left" in full.stderr and "Traceback" not in full.stderr, full.stderr[-2000:])
                missing, rows = lost(out, reference), len(rows_of(out))
                require(not missing, f"{left} KiB left: {len(missing)} rows of complete rounds are lost")
                rounds = ", ".join(map(str, complete_rounds(out).values())) or "-"
                ballast.unlink()
                begins = (out / "config.json").is_file()
                again = ended(resumed(out) if begins else command(out, SMALL))
                require(again.returncode == 0, f"{left} KiB left, then room: {again.stderr[-2000:]}")
                require(
                    untimed(rows_of(out)) == untimed(reference), f"{left} KiB left: other rows than an unbroken run"
                )
                found.append([left, rounds, rows, len(missing), "resumed" if begins else "same command again"])
        head = [
            "KiB left at the start",
            "last complete round",
            "rows on disk",
            "rows of complete rounds lost",
            "then, with room",
        ]
        table("A full disk", head, found)
        print(
            f"\nEach ended with code 1 and the system's words; with room, all {len(reference)} rows are those of an unbroken run."
        )


def _deleted(out: Path) -> None:
    shutil.rmtree(out)


def _replaced(out: Path) -> None:
    shutil.rmtree(out)
    out.write_text("a file")


def _in_the_way(out: Path) -> None:
    (out / "rows.jsonl.tmp").mkdir()


def _without(name: str) -> Callable[[Path], None]:
    return lambda out: shutil.rmtree(out / name)


CHANGES: dict[str, Callable[[Path], None]] = {
    "deleted": _deleted,
    "a file in its place": _replaced,
    "a folder where rows are written": _in_the_way,
    "its checkpoints deleted": _without("checkpoints"),
    "its jobs deleted": _without("jobs"),
    "its pictures deleted": _without("pictures"),
}
"""What happens to the output folder of a living run."""


def folder(arguments: argparse.Namespace) -> None:
    """The output folder of a living run is deleted, replaced, or made unwritable in part."""
    draw, found = random.Random(arguments.seed), list[list[object]]()
    settings = SMALL | {"rounds": 4}
    with tempfile.TemporaryDirectory() as place:
        whole = Path(place) / "whole"
        require(ended(command(whole, settings)).returncode == 0, "the unbroken run")
        reference = rows_of(whole)
        for at, (what, change) in enumerate(CHANGES.items()):
            out, log, rows = Path(place) / f"run{at}", Path(place) / f"log{at}", draw.randrange(len(reference) * 3 // 4)
            with running(command(out, settings), log) as process:
                wait(process, out, rows, 0.0)
                while True:  # a folder that is being written to may not go at once
                    with contextlib.suppress(OSError):
                        change(out)
                        break
                code = process.wait(ENDLESS)
            told = log.read_text(errors="replace")
            require(code in (0, 1, 3) and "Traceback" not in told, f"{what}: code {code}: {told[-3000:]}")
            if out.is_file():
                out.unlink()
            for path in out.glob("*.tmp"):
                path.rmdir()
            begun = (out / "config.json").is_file()
            again = ended(resumed(out) if begun else command(out, settings))
            require(again.returncode == 0, f"{what}, then as it was: {again.stderr[-2000:]}")
            require(untimed(rows_of(out)) == untimed(reference), f"{what}: other rows than an unbroken run")
            found.append([what, rows, code, _words(told), "resumed" if begun else "same command again"])
            print(found[-1], flush=True)
    table(
        f"The output folder of a living run (seed {arguments.seed})",
        ["its folder", "behind row", "exit code", "what it says", "then, as it was"],
        found,
    )


def two(_: argparse.Namespace) -> None:
    """Two runs at the same time: the second in the folder of the first, and one in a folder of its own."""
    with tempfile.TemporaryDirectory() as folder:
        alone, first, beside = (Path(folder) / name for name in ("alone", "first", "beside"))
        require(ended(command(alone, SMALL)).returncode == 0, "the run alone")
        with running(command(first, SMALL), Path(folder) / "log") as process:
            require(begun(first, process), "the first run began")
            while not (first / "config.json").is_file():
                time.sleep(0.1)
            started = subprocess.Popen(command(beside, SMALL), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            process.send_signal(signal.SIGSTOP)  # it waits for the others, however long these take
            same, taken = ended(command(first, SMALL)), ended(resumed(first))
            process.send_signal(signal.SIGCONT)
            codes = process.wait(ENDLESS), started.wait(ENDLESS)
        require(codes == (0, 0), f"codes {codes}")
        reference = untimed(rows_of(alone))
        rows = [
            ["a new run in the folder of a living one", same.returncode, _words(same.stderr)],
            ["--resume of a living run", taken.returncode, _words(taken.stderr)],
            ["the living run itself", codes[0], f"rows as alone: {untimed(rows_of(first)) == reference}"],
            [
                "another run beside it, in its own folder",
                codes[1],
                f"rows as alone: {untimed(rows_of(beside)) == reference}",
            ],
        ]
        table("Two runs at once", ["what", "exit code", "what came of it"], rows)
        require(same.returncode != 0 and taken.returncode != 0, "a second writer was let in")
        require(untimed(rows_of(first)) == reference == untimed(rows_of(beside)), "one run changed the other")


def _words(text: str) -> str:
    """The error in one line, without folders."""
    line = " ".join(text.split())
    begin = max(line.find("error:"), line.find("the run failed"))
    return json.dumps(re.sub(r"\S+/", "", line[begin:])[:150])
