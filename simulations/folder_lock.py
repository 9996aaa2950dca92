"""One writer for a folder: two would undo each other's files."""

from __future__ import annotations

import fcntl
from pathlib import Path
from typing import IO

from simulations.errors import ConfigError

LOCK = ".lock"
"""File that a writer keeps locked. It stays when the writer ends: whoever removed it could let two others in at once."""


def take_lock(folder: Path, refusal: str) -> IO[str]:
    """Takes a folder, which is made where it is missing, for this process and those that it forks, until the file is closed.

    Args:
        folder: The folder.
        refusal: What to tell when another process has it.

    Raises:
        ConfigError: With ``refusal``; or when the folder cannot be made or written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = (folder / LOCK).open("w")
    except OSError as error:
        raise ConfigError(f"cannot write into {folder}: {error.strerror}") from error
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        raise ConfigError(refusal) from None
    return file
