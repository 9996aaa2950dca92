"""The pieces of benchmarks/reliability.py about a disk that fills up, and about two runs at once."""

from __future__ import annotations

import argparse
import contextlib
import json
import re
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from reliability import (
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
    return json.dumps(re.sub(r"\S+/", "", line[line.find("error") :])[:150])
