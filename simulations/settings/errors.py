"""What a setting that cannot be run raises."""

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
"""What a file that a user or a broken disk wrote can provoke in its reader."""


class ConfigError(ValueError):
    """A setting that cannot be run, named as the user writes it, with what came and what is allowed."""


@contextmanager
def undamaged(
    path: Path, key: str = "resume", instead: str = "restore it from a copy, or begin a run in another folder"
) -> Iterator[None]:
    """Raise what a file provokes in its reader as ``ConfigError``: nothing that was complete is left out silently.

    The error names the file, the option ``key`` that named it, and what the user can do ``instead``.
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
    """Raise what other code refuses, or torch cannot do, as a ``ConfigError`` that begins with the setting or option behind it."""
    try:
        yield
    except (ValueError, RuntimeError, MemoryError) as error:
        raise ConfigError(f"{key}: {error}") from error


def unknown_scenario(name: object, known: Iterable[str]) -> ConfigError:
    """The error of a scenario that there is not."""
    return ConfigError(f"scenario is {str(name)[:200]!r}; allowed: {' or '.join(map(repr, known))}")


NEAREST = 5
"""Known names that an error about an unknown one shows."""


def require_known(what: str, name: str, known: Any, also: str = "") -> None:
    """Raises ``ConfigError``, with the nearest known names, unless ``name`` is one of ``known``; of many, only five are named."""
    if name in known:
        return
    near, many = difflib.get_close_matches(name, list(known), n=NEAREST, cutoff=0.0), len(known) > 2 * NEAREST
    close = difflib.get_close_matches(name, near, n=1, cutoff=0.5)
    hint = f", did you mean {close[0]!r}?" if close else ""
    shown = f"nearest of {len(known)}: {', '.join(near)}" if many else f"known: {', '.join(sorted(known))}"
    raise ConfigError(f"unknown {what} {name!r}{hint}; {shown}{' ' + also if also else ''}")
