"""Lock of a folder for one writer: two would overwrite each other's files."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Collection
from fnmatch import fnmatchcase
from pathlib import Path
from typing import IO

from clients.wire.texts import shown
from simulations.run_folder.places import require_folder
from simulations.settings.errors import ConfigError

LOCK = ".lock"
"""File that a writer keeps locked. It stays when the writer ends, unless the writer removes it by ``remove_lock``."""

COMMAND_LOCK = ".command.lock"
"""The same for a command, which has the folder before the process that it starts locks ``LOCK``."""


LOG = "flower.log"
"""Of a run's runtime, which may not have started."""


def require_new(
    folder: Path, key: str, resume: str = "", begun: Collection[str] = (), leftovers: Collection[str] = ()
) -> None:
    """Refuse a folder that cannot be written, or has any content but the files of a command that was killed before it had begun.

    Every command that writes a folder of results calls this first, so that no file of a person lies among them.

    Args:
        folder: May be missing.
        key: Setting or option that names it.
        resume: How to go on with a command that was begun there.
        begun: Names of files that show such a command.
        leftovers: Patterns of names of files, beside locks and logs, that a command leaves before it has begun.

    Raises:
        ConfigError: Naming the key, the first thing that the folder holds, and what to do.
    """
    require_folder(folder, key)
    held = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
    ours = LOCK, COMMAND_LOCK, LOG, *leftovers
    if there := [name for name in held if not any(fnmatchcase(name, one) for one in ours)]:
        way = f"{resume}, or name" if {*held} & {*begun} else "name"
        raise ConfigError(f"{key}: {folder} is not empty: it holds {shown(there[0])}; {way} another folder")


def take_lock(folder: Path, refusal: str, name: str = LOCK) -> IO[str]:
    """Lock a folder, which is made where missing, for this process and its forks, until the file is closed.

    Raises:
        ConfigError: With ``refusal`` and the number of the process that has it; or when the folder cannot be made or written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = (folder / name).open("a+", encoding="utf-8")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(refusal + _holder(file)) from None
        if not _is_at(folder / name, file):  # its last holder removed it between these lines
            file.close()
            return take_lock(folder, refusal, name)
        file.truncate(0)
        file.write(f"{os.getpid()}\n")
        file.flush()
    except OSError as error:  # of a full disk, too
        raise ConfigError(f"cannot write into {folder}: {error.strerror}") from error
    return file


def remove_lock(folder: Path) -> None:
    """Remove the file of a lock that the caller holds. Another process that has opened it already takes a new one."""
    (folder / LOCK).unlink(missing_ok=True)


def _is_at(path: Path, file: IO[str]) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(file.fileno()))
    except FileNotFoundError:
        return False


def require_free(folder: Path, refusal: str, name: str = LOCK) -> None:
    """Raises ``ConfigError`` with ``refusal``, as ``take_lock`` does, where another process has the folder; changes nothing."""
    path = folder / name
    if not path.is_file():
        return
    with path.open(encoding="utf-8", errors="replace") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(refusal + _holder(file)) from None


def _holder(file: IO[str]) -> str:
    """The process that holds the lock, as written in the file, which is closed here."""
    with file:
        file.seek(0)
        number = file.read(32).strip()
    return f" (process {number})" if number.isdecimal() else ""
