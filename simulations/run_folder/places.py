"""Checks of paths that a user names."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from clients.wire.texts import shown
from simulations.settings.errors import ConfigError


def is_there(path: Path, key: str, advice: str = "") -> bool:
    """Whether there is a file or folder at the path that a setting or option ``key`` names.

    Raises:
        ConfigError: When nothing can have that name, or it may not be looked at; with ``advice`` behind the reason.
    """
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


def require_folder(out: Path, key: str = "output-dir") -> None:
    """Raise ``ConfigError``, naming ``key``, for a folder to which results cannot be written; it need not exist.

    Neither it nor the nearest folder above it that exists may be a file, or closed to writing, and its name must be possible.
    """
    advice = "; name another folder"
    nearest = next(one for one in (out, *out.parents) if is_there(one, key, advice))
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
