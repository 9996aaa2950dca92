"""Checks of paths that a user names."""

from __future__ import annotations

import os
from pathlib import Path

from simulations.settings.errors import ConfigError
from simulations.settings.fields import shown


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
