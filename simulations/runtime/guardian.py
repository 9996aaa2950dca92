"""Ending the processes of a local Flower runtime, even when the command that started it was killed.

A runtime's SuperLink is a daemon, and with it go its SuperExec, the simulation and Ray's processes: none of them ends because the
command does. What they have in common is the runtime's temporary home in their environment.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from simulations.runtime.user_cache import forget_bytecode

HOME_VARIABLE = "FLWR_HOME"
KILLS = 5
"""Rounds of SIGKILL before a runtime's processes are left to the system: what one of them started meanwhile goes next."""


class Guardian:
    """A small process that ends a runtime when this process ends, for whatever reason.

    It waits for the end of a pipe whose other end only this process holds: the system closes that end in any case. It runs in a
    session of its own, so that what is sent to this process's group does not reach it.
    """

    def __init__(self, home: Path) -> None:
        read, self._write = os.pipe()
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "simulations.runtime.guardian", str(home)], cwd=Path(__file__).resolve().parents[2],
                stdin=read, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
            )  # fmt: skip
        finally:
            os.close(read)

    def dismiss(self) -> None:
        """End the guardian; a runtime that is still there ends with it."""
        if self._write >= 0:
            os.close(self._write)
            self._write = -1
            self._process.wait()


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """Context in which this process and its children make temporary files in a folder that is deleted when this process ends.

    It is the same folder each time; sockets between processes are in it to the end.
    """
    if not _folders or not _folders[-1].is_dir():  # it may have been cleaned away where a process is old
        _folders.append(Path(tempfile.mkdtemp(prefix="fedveil-run-")))
        _guardians.append(Guardian(_folders[-1]))  # never dismissed
    folder, before = _folders[-1], (os.environ.get("TMPDIR"), tempfile.tempdir)
    os.environ["TMPDIR"] = tempfile.tempdir = str(folder)
    try:
        yield folder
    finally:
        variable, tempfile.tempdir = before
        os.environ.pop("TMPDIR")
        os.environ |= {} if variable is None else {"TMPDIR": variable}


_folders: list[Path] = []
_guardians: list[Guardian] = []


def end_runtime(home: Path, *, at_once: bool = False) -> None:
    """End every process with this home in its environment, the simulation first, and remove the home; ``at_once`` by killing."""
    for attempt in range(int(at_once), 1 + KILLS):
        # A simulation orphaned by its daemon would run on, so it goes first.
        processes = sorted(processes_of(home), key=lambda process: "flwr-simulation" not in " ".join(_command(process)))
        for process in processes:
            with suppress(psutil.NoSuchProcess):
                process.kill() if attempt else process.terminate()
        if not processes:
            break
        psutil.wait_procs(processes, timeout=3.0 if attempt else 6.0)
    shutil.rmtree(home, ignore_errors=True)
    forget_bytecode(home)  # of the app, which Flower unpacks there


def processes_of(home: Path) -> list[psutil.Process]:
    """Processes, but this one, with this home in their environment."""
    processes = []
    for process in psutil.process_iter():
        try:
            if process.pid != os.getpid() and process.environ().get(HOME_VARIABLE) == str(home):
                processes.append(process)
        except (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess, OSError):
            continue
    return processes


def _command(process: psutil.Process) -> list[str]:
    try:
        return list(process.cmdline())
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return []


if __name__ == "__main__":
    sys.stdin.buffer.read()
    end_runtime(Path(sys.argv[1]))
