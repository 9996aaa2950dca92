"""The folder for the results of an audit, taken before the first round."""

from __future__ import annotations

import fcntl
from itertools import count
from logging import WARNING
from pathlib import Path
from typing import IO

from flwr.common import log

from simulations.run_folder.folder_lock import require_free, take_lock
from simulations.settings.errors import ConfigError

RESULTS = ("rows.jsonl", "config.json", "report.html")
"""Files by which a folder holds the results of a run."""


class TakenFolder:
    """A folder that no other run may write to, until it is released.

    Args:
        path: The folder.
        lock: Its lock.
    """

    def __init__(self, path: Path, lock: IO[str]) -> None:
        self.path, self._lock = path, lock

    def release(self) -> None:
        """Let a writer of results lock the folder, even if a forked process still has the file open."""
        if not self._lock.closed:
            fcntl.flock(self._lock, fcntl.LOCK_UN)
            self._lock.close()

    __del__ = release


def take_folder(wanted: Path) -> TakenFolder:
    """Take a folder, or FOLDER-2, FOLDER-3 and so on where it holds results or another run writes to it.

    Raises:
        ConfigError: When the path is relative or a file, or the folder cannot be made or written.
    """
    if not wanted.is_absolute():
        raise ConfigError(f"folder is {str(wanted)!r}; it must be absolute: a simulation runs elsewhere")
    for number in count(1):
        path = wanted if number == 1 else wanted.with_name(f"{wanted.name}-{number}")
        if path.exists() and not path.is_dir():
            raise ConfigError(f"folder {path} is a file; name a folder")
        if not _is_free(path):
            continue
        taken = TakenFolder(path, take_lock(path, f"folder {path}: another run is still writing to it"))
        if path != wanted:
            log(WARNING, "Audit: %s holds the results of another run; the results of this run go to %s", wanted, path)
        return taken
    raise AssertionError("numbers do not end")


def _is_free(path: Path) -> bool:
    """Whether a folder holds no results, and no other run writes to it."""
    if any((path / name).exists() for name in RESULTS):
        return False
    try:
        require_free(path, "")
    except ConfigError:
        return False
    return True
