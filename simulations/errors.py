"""What a setting that cannot be run raises."""

from __future__ import annotations

import difflib
from typing import Any


class ConfigError(ValueError):
    """A setting that cannot be run, named as the user writes it, with what came and what is allowed."""


def require_known(what: str, name: str, known: Any, also: str = "") -> None:
    """Raises ``ConfigError``, with the nearest known name, unless ``name`` is one of ``known``."""
    if name in known:
        return
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    hint = f", did you mean {close[0]!r}?" if close else ""
    raise ConfigError(f"unknown {what} {name!r}{hint}; known: {', '.join(sorted(known))}{' ' + also if also else ''}")
