"""The command line of a request: what a person pastes to run it, or to run it again with more settings."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from simulations.external_app.recorded.arguments.settings import Request

DROPPED = ""
"""In place of the text of a setting that the command must not have."""
FIRST = ("model", "num-classes", "input-shape", "normalisation", "learning-rate")


def command_of(request: Request, changes: Mapping[str, str] | None = None, out: Path | None = None) -> str:
    """`fedveil attack ...` with every setting that was given.

    Args:
        request: Of a recording, or of a single update.
        changes: Key -> text that replaces its value, such as a word in capitals for what only a person knows; ``DROPPED`` leaves
            the setting out.
        out: Folder of the results; None leaves the option out.
    """
    given = request.settings.model_dump(by_alias=True, exclude_unset=True)
    texts = {key: _text(value) for key, value in given.items() if value != ""} | dict(changes or {})
    ordered = sorted(texts, key=lambda key: FIRST.index(key) if key in FIRST else len(FIRST))
    words = [word for key in ordered if texts[key] != DROPPED for word in ("-s", f"{key}={texts[key]}")]
    folder = [] if out is None else ["--out", str(out)]
    return shlex.join(["fedveil", "attack", str(request.update), *words, *folder])


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)
