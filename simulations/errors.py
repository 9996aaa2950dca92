"""What a setting that cannot be run raises."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors import SafetensorError


class ConfigError(ValueError):
    """A setting that cannot be run, named as the user writes it, with what came and what is allowed."""


@contextmanager
def undamaged(path: Path) -> Iterator[None]:
    """Whatever a file of a run provokes in its reader is told as damage of that file; what was complete is never left out silently.

    Raises:
        ConfigError: Naming the file.
    """
    try:
        yield
    except ConfigError:
        raise
    except (SafetensorError, ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError) as error:
        told = f"{type(error).__name__}: {str(error)[:200]}"
        raise ConfigError(
            f"resume: {path} is damaged ({told}); restore it from a copy, or begin a run in another folder"
        ) from error


def require_known(what: str, name: str, known: Any, also: str = "") -> None:
    """Raises ``ConfigError``, with the nearest known name, unless ``name`` is one of ``known``."""
    if name in known:
        return
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    hint = f", did you mean {close[0]!r}?" if close else ""
    raise ConfigError(f"unknown {what} {name!r}{hint}; known: {', '.join(sorted(known))}{' ' + also if also else ''}")
