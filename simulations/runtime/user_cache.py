"""The user's cache: files that may be removed at any time."""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile
from pathlib import Path


def cache_folder() -> Path:
    """The folder of fedveil in the user's cache; ``RuntimeError`` where the user has neither one nor a home directory."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fedveil"


def private_folder(name: str) -> Path | None:
    """The path, without symbolic links, of a folder that no other user can change, for files whose content this user runs.

    It is made in the user's cache or, where that cannot be used, in the directory for temporary files; None where neither is safe.
    """
    places = [Path(tempfile.gettempdir()) / f"fedveil-{name}-{os.geteuid()}"]
    with contextlib.suppress(RuntimeError):  # a user without a home directory, as in containers
        places.insert(0, cache_folder() / name)
    for place in places:
        try:
            place.mkdir(mode=0o700, parents=True, exist_ok=True)
            if _is_private(place):
                return place.resolve()
        except OSError:  # a read-only home, or a file in the way
            continue
    return None


def _is_private(folder: Path) -> bool:
    """Whether only this user, and root, can change what a folder holds, or put another in its place."""
    mine = folder.lstat()
    if not stat.S_ISDIR(mine.st_mode) or mine.st_uid != os.geteuid() or mine.st_mode & 0o077:
        return False
    above = [parent.stat() for parent in folder.resolve().parents]
    safe = all(
        one.st_uid in (0, os.geteuid()) and (not one.st_mode & 0o022 or one.st_mode & stat.S_ISVTX) for one in above
    )
    return safe and os.access(folder, os.R_OK | os.W_OK | os.X_OK)
