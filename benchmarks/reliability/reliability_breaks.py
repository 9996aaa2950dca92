"""Runs that break off: a signal ends one of their processes, the disk fills up, or another program changes their output folder.

Afterwards no process and no temporary file may be left, and no row of a complete round may be lost. The resumed run must have the
rows of an uninterrupted one, unless a row names what failed.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import os
import random
import shutil
import signal
import subprocess
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import psutil
from reliability_runs import ENDLESS, ROOT, Case, command, ended, failures, is_finished, lost, require, rows_of, untimed

SETTINGS: dict[str, Any] = {
    "dataset": "mnist-5k", "model": "lenet", "batch-size": 16, "learning-rate": 0.1, "momentum": 0.5, "train-limit": 400,
    "test-limit": 100, "rounds": 4, "local-epochs": 2, "defenses": "GaussianNoise(std=0.02)", "num-clients": 4,
    "probe-attacks": "InvertingGradients(iterations=30); LabelInference()", "update-attacks": "LabelInference()",
    "probe-targets": 1, "attack-rounds": "first,last", "adaptive": False, "attack-workers": 1,
}  # fmt: skip
MARK = "FEDVEIL_BENCHMARK"
"""Variable in the environment of all processes that a command starts."""
CLEAN = 90.0
"""Seconds in which all processes and temporary files of a command must go."""
DISK = 65_536
"""KiB of the small disk."""


class Running:
    """A command in a session of its own, with its marked processes and its folder for temporary files."""

    def __init__(self, line: list[str], out: Path, temporary: Path) -> None:
        self.line, self.out, self.temporary, self._mark = line, out, temporary, uuid.uuid4().hex
        self.log = temporary.with_suffix(".log")
        temporary.mkdir()
        env = os.environ | {MARK: self._mark, "TMPDIR": str(temporary)}
        with self.log.open("wb") as file:
            self.process = subprocess.Popen(line, stdout=file, stderr=file, start_new_session=True, cwd=ROOT, env=env)

    def processes(self) -> list[psutil.Process]:
        """Living processes of the command."""
        found = []
        for one in psutil.process_iter():
            with contextlib.suppress(psutil.Error, OSError):
                if one.environ().get(MARK) == self._mark and one.status() != psutil.STATUS_ZOMBIE:
                    found.append(one)
        return found

    def wait_for_row(self, row: int) -> None:
        """Wait until the run has begun and written so many rows, or has ended; the last line may still be incomplete."""
        path, deadline = self.out / "rows.jsonl", time.monotonic() + ENDLESS
        while self.process.poll() is None and not (
            (self.out / "config.json").is_file() and path.is_file() and path.read_bytes().count(b"\n") >= row
        ):
            require(time.monotonic() < deadline, f"the run hangs before its row {row}")
            time.sleep(0.02)

    def wait_until_clean(self) -> float:
        """Seconds until no process and no temporary file is left."""
        start = time.monotonic()
        while left := [str(one.pid) for one in self.processes()] + [
            path.name for path in self.temporary.iterdir() if not path.name.startswith("torchinductor_")  # torch keeps it
        ]:  # fmt: skip
            require(time.monotonic() - start < CLEAN, f"left behind: {left}")
            time.sleep(0.2)
        return time.monotonic() - start

    def end(self) -> None:
        """Kill all that is left."""
        for one in self.processes():
            with contextlib.suppress(psutil.Error):
                one.kill()
        self.process.wait()


@dataclass(frozen=True)
class Break:
    """What happens to a run.

    Attributes:
        strike: Does it; False if there is no such process yet.
        codes: Exit codes that the command may have then.
        words: A text that the command must print.
        small_disk: The run writes to a disk of ``DISK`` KiB (tmpfs, so root).
        quiet: The command must print no traceback.
    """

    strike: Callable[[Running], bool]
    codes: tuple[int, ...] = (0, 1, 3)
    words: str = ""
    small_disk: bool = False
    quiet: bool = True


def _send(victim: str, number: int, run: Running) -> bool:
    if victim == COMMAND:
        run.process.send_signal(number)
        return True
    if victim == GROUP:
        os.killpg(run.process.pid, number)
        return True
    for one in run.processes():
        with contextlib.suppress(psutil.Error):
            if VICTIMS[victim] in " ".join([one.name(), *one.cmdline()]):
                one.send_signal(number)
                return True
    return False


def _to_folder(change: Callable[[Path], object], run: Running) -> bool:
    try:
        change(run.out)
    except OSError:  # a folder that the run writes to may not go at once
        return False
    return True


def _replace(out: Path) -> None:
    shutil.rmtree(out)
    out.write_text("a file")


def _fill(run: Running) -> bool:
    with contextlib.suppress(OSError), (run.out.parent / "ballast").open("wb", buffering=0) as file:
        while True:
            file.write(b"\0" * 1024)
    return True


def _start_again(run: Running) -> bool:
    """Starts the same command, and resumes the run, while the run is active."""
    run.process.send_signal(signal.SIGSTOP)  # it waits for the others, however long these take
    for line in (run.line, command(run.out, SETTINGS)):
        done = ended(line)
        require(
            done.returncode == 2 and "still writing" in done.stderr,
            f"a second run: {done.returncode}, {done.stderr[-500:]}",
        )
    run.process.send_signal(signal.SIGCONT)
    return True


COMMAND, GROUP = "the command", "its process group"
VICTIMS = {
    COMMAND: "", GROUP: "", "an attack worker": "multiprocessing.spawn", "a client worker": "ray::ClientApp",
    "an attack actor": "ray::_Worker", "the simulation": "flwr-simulation", "the SuperLink": "flower-superlink",
}  # fmt: skip
"""Process -> what its command line holds."""


def _signals(*victims: str) -> dict[str, Break]:
    """A break for each signal to each process; the command itself ends by its signal, and gets SIGINT and SIGHUP, too."""
    found = {}
    for victim, number in itertools.product(victims, (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)):
        own, killed = victim in (COMMAND, GROUP), number == signal.SIGKILL
        codes = (0, 3, -number if killed else 128 + number) if own else (0, 1, 3)
        if own or number in (signal.SIGKILL, signal.SIGTERM):
            found[f"{number.name} to {victim}"] = Break(partial(_send, victim, number), codes, quiet=not killed)
    return found


IN_PROCESS = _signals(COMMAND, GROUP, "an attack worker") | {
    "folder deleted": Break(partial(_to_folder, shutil.rmtree)),
    "folder replaced by a file": Break(partial(_to_folder, _replace)),
    "folder in place of new rows": Break(partial(_to_folder, lambda out: (out / "rows.jsonl.tmp").mkdir())),
    "checkpoints deleted": Break(partial(_to_folder, lambda out: shutil.rmtree(out / "checkpoints"))),
    "a second run in its folder": Break(_start_again, (0,)),
    "disk full": Break(_fill, (0, 1), "No space left", small_disk=True),
}
ON_FLOWER = _signals(COMMAND, GROUP, "a client worker", "an attack actor", "the simulation", "the SuperLink")
"""What happens to runs in one process, and to runs on Flower's runtime."""


def breaks(arguments: argparse.Namespace) -> Iterator[Case]:
    """Runs that are broken off at a random row, by ``--kinds`` of breaks in turn; ``--real N`` on Flower's runtime."""
    with tempfile.TemporaryDirectory() as place:
        done = ended(command(Path(place) / "whole", SETTINGS))
        require(done.returncode == 0, f"the uninterrupted run: {done.stderr}")
        reference = rows_of(Path(place) / "whole")
        for in_process, kinds, count in ((True, IN_PROCESS, arguments.cases), (False, ON_FLOWER, arguments.real)):
            wanted = arguments.kinds.split(",") if arguments.kinds else [""]
            names = [name for name in kinds if any(one in name for one in wanted)]
            names = [name for name in names if os.geteuid() == 0 or not kinds[name].small_disk]
            for number in range(arguments.first, arguments.first + count):
                name = names[number % len(names)]
                row = random.Random(f"{arguments.seed} {number} {in_process}").randrange(len(reference))
                where = f"{number}-{in_process}"
                yield Case(
                    name if in_process else f"{name}, on Flower's runtime",
                    f"case {number}: {name}, after row {row}",
                    partial(_broken, kinds[name], row, Path(place) / where, reference, in_process=in_process),
                )


def _broken(kind: Break, row: int, folder: Path, reference: list[dict[str, Any]], *, in_process: bool) -> str:
    folder.mkdir()
    with _small_disk(folder / "disk") if kind.small_disk else contextlib.nullcontext(folder) as disk:
        out = disk / "run"
        run = Running(command(out, SETTINGS, in_process=in_process), out, folder / "temporary")
        try:
            run.wait_for_row(row)
            struck = False
            while run.process.poll() is None and not (struck := kind.strike(run)):
                time.sleep(0.02)
            code = run.process.wait(ENDLESS)
            seconds = run.wait_until_clean()
        finally:
            run.end()
        text = run.log.read_text(errors="replace")
        require(code in (kind.codes if struck else (0, 3)), f"exit code {code}: {text[-1500:]}")
        require(not (kind.quiet and "Traceback" in text), text[-3000:])
        require(not kind.words or code == 0 or kind.words in text, f"no {kind.words!r} in {text[-1500:]}")
        missing, clients = lost(out, reference), failures(out, "client")
        require(not missing or bool(clients), f"{len(missing)} rows of complete rounds are lost, such as {missing[:1]}")
        _restore(out)
        if not is_finished(out):
            again = ended(command(out, SETTINGS, in_process=in_process))
            require(again.returncode in (0, 3), f"resumed: {again.stdout[-1000:]} {again.stderr[-2000:]}")
        failed = failures(out, "attack") + failures(out, "client")
        odd = set(untimed(rows_of(out))) ^ set(untimed(reference))
        require(
            bool(failed) or not odd, f"{len(odd)} rows differ from the uninterrupted run, such as {sorted(odd)[:2]}"
        )
    outcome = "rows name what failed" if failed else "the rows of an uninterrupted run"
    return f"{outcome}: {'code' if struck else 'ended before, code'} {code}, clean after {seconds:.0f} s"


def _restore(out: Path) -> None:
    """Make room, and remove what stands in the way of a run."""
    (out.parent / "ballast").unlink(missing_ok=True)
    if out.is_file():
        out.unlink()
    for path in out.glob("*.tmp"):
        path.rmdir() if path.is_dir() else path.unlink()


@contextlib.contextmanager
def _small_disk(place: Path) -> Iterator[Path]:
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK}k", "tmpfs", str(place)], check=True)
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)
