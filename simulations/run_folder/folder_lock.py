"""Paths that a user names, and the lock of a folder for one writer: two would overwrite each other's files."""

import fcntl
import os
import tempfile
from collections.abc import Collection
from fnmatch import fnmatchcase
from pathlib import Path
from typing import IO

from clients.wire.texts import shown
from simulations.settings.errors import ConfigError

LOCK = ".lock"
"""File that a writer keeps locked. It stays when the writer ends."""

COMMAND_LOCK = ".command.lock"
"""The same for a command, which has the folder before the process that it starts locks ``LOCK``."""


LOG = "flower.log"
"""Of a run's runtime, which may not have started."""


def is_there(path: Path, key: str, advice: str = "") -> bool:
    """Whether anything is at the path that the setting or option ``key`` names; ``ConfigError``, with ``advice``, if unknown."""
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except (OSError, ValueError) as error:  # a ValueError for a NUL in it
        why = error.strerror if isinstance(error, OSError) else error
        raise ConfigError(f"{key}: {shown(str(path))}: {why}{advice}") from error
    return True


def require_rows(folder: Path, key: str) -> None:
    """Raises ``ConfigError`` unless a folder, which the option ``key`` names, holds the rows of a run."""
    rows = folder / "rows.jsonl"
    if not is_there(rows, key):
        raise ConfigError(f"{folder} holds no run (no rows.jsonl)")
    if not rows.is_file():
        raise ConfigError(f"{key}: {rows} is no file; a run writes its numbers there")
    if not os.access(rows, os.R_OK):
        raise ConfigError(f"{key}: {rows} may not be read")


def require_ours(file: Path, key: str, mark: str, what: str) -> None:
    """Raise ``ConfigError`` if a command would replace a file that does not begin with its ``mark``; ``what`` such files are."""
    if not is_there(file, key):
        return
    if not file.is_file():
        raise ConfigError(f"{key}: {file} is no file; name another")
    with file.open("rb") as content:
        if mark.encode() not in content.read(2000):
            raise ConfigError(f"{key}: {file} exists and is no {what} by fedveil; name another file, or delete it")


def require_folder(out: Path, key: str = "output-dir") -> None:
    """Raise ``ConfigError``, naming ``key``, for a folder to which results cannot be written; it need not exist.

    Neither it nor the nearest folder above it that exists may be a file, or closed to writing, and its name must be possible.
    """
    advice = "; name another folder"
    nearest = next(folder for folder in (out, *out.parents) if is_there(folder, key, advice))
    if not nearest.is_dir():
        raise ConfigError(f"{key}: {nearest} is a file, and results need a folder; name another")
    if not os.access(nearest, os.W_OK | os.X_OK):
        raise ConfigError(f"{key}: {nearest} may not be written to{advice}")
    for part in out.relative_to(nearest).parts:
        is_there(nearest / part, key, advice)  # a name may be too long below a folder that is yet to be made
    try:  # where all may write, as root may, some file systems still take nothing, such as /proc
        with tempfile.TemporaryFile(dir=nearest):
            pass
    except OSError as error:
        raise ConfigError(f"{key}: {nearest} takes no files ({error.strerror}){advice}") from error


def require_new(
    folder: Path, key: str, resume: str = "", begun: Collection[str] = (), leftovers: Collection[str] = ()
) -> None:
    """Refuse a folder that cannot be written, or has any content but the files of a command that was killed before it had begun.

    Every command that writes a folder of results calls this first, so that no file of a person lies among them. ``key`` names the
    folder, which may be missing. Files ``begun`` show a command that can go on as ``resume`` says. ``leftovers`` are patterns of
    files, beside locks and logs, that a command leaves before it has begun.
    """
    require_folder(folder, key)
    held = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
    ours = LOCK, COMMAND_LOCK, LOG, *leftovers
    if there := [name for name in held if not any(fnmatchcase(name, pattern) for pattern in ours)]:
        way = f"{resume}, or name" if {*held} & {*begun} else "name"
        raise ConfigError(f"{key}: {folder} is not empty: it holds {shown(there[0])}; {way} another folder")


def take_lock(folder: Path, refusal: str, name: str = LOCK) -> IO[str]:
    """Lock a folder, which is made where missing, for this process and its forks, until the file is closed.

    Where another process has it, the ``ConfigError`` is ``refusal`` and the number of that process.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = (folder / name).open("a+", encoding="utf-8")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(refusal + _holder(file)) from None
        file.truncate(0)
        file.write(f"{os.getpid()}\n")
        file.flush()
    except OSError as error:  # of a full disk, too
        raise ConfigError(f"cannot write into {folder}: {error.strerror}") from error
    return file


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
