"""Errors for settings that cannot be run."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

UNREADABLE = (
    SafetensorError, ValueError, KeyError, TypeError, AttributeError, IndexError, OverflowError, RecursionError
)  # fmt: skip
"""Exceptions that a damaged or foreign file can raise in its reader."""


class ConfigError(ValueError):
    """A setting that cannot be run: its key as users write it, the value, and the allowed values."""


@contextmanager
def undamaged(
    path: Path, key: str = "resume", instead: str = "restore it from a copy, or begin a run in another folder"
) -> Iterator[None]:
    """Turn any exception while reading a file into a ``ConfigError``, so that damaged data are never skipped silently.

    The error names the file, the option ``key`` that gave the file, and what the user can do ``instead``.
    """
    try:
        yield
    except ConfigError:
        raise
    except UNREADABLE as error:
        reason = f"{type(error).__name__}: {str(error)[:200]}"
        raise ConfigError(f"{key}: {path} is damaged ({reason}); {instead}") from error


@contextmanager
def naming(key: str) -> Iterator[None]:
    """Turn errors of other code, or of torch, into a ``ConfigError`` that begins with the setting or option ``key``."""
    try:
        yield
    except (ValueError, RuntimeError, MemoryError) as error:
        raise ConfigError(f"{key}: {error}") from error


def unknown_scenario(name: object, known: Iterable[str]) -> ConfigError:
    """The error for an unknown scenario."""
    return ConfigError(f"scenario is {str(name)[:200]!r}; allowed: {' or '.join(map(repr, known))}")


NEAREST = 5
"""Number of known names that an error about an unknown name shows."""


def require_known(what: str, name: str, known: Any, also: str = "") -> None:
    """Raise ``ConfigError`` with the known names, or the five nearest of many, unless ``name`` is one of ``known``."""
    if name in known:
        return
    near, many = difflib.get_close_matches(name, list(known), n=NEAREST, cutoff=0.0), len(known) > 2 * NEAREST
    close = difflib.get_close_matches(name, near, n=1, cutoff=0.5)
    hint = f", did you mean {close[0]!r}?" if close else ""
    shown = f"nearest of {len(known)}: {', '.join(near)}" if many else f"known: {', '.join(sorted(known))}"
    raise ConfigError(f"unknown {what} {name!r}{hint}; {shown}{' ' + also if also else ''}")
