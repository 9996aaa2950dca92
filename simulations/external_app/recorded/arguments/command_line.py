"""The command line of a request: what a person pastes to run it, or to run it again with more options."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path

from simulations.external_app.recorded.arguments.request import RecordingRequest, Request

DROPPED = ""
"""In place of the text of an option that the command must not have."""
OPTION_OF = {"attacks": "--attack"}
"""Field -> option, where it is not the field's name with hyphens."""
FIRST = ("model", "num_classes", "input_shape", "mean", "std", "learning_rate")


def command_of(request: RecordingRequest, changes: Mapping[str, str] | None = None, out: Path | None = None) -> str:
    """`fedveil attack ...` with every option that differs from its default.

    Args:
        request: Of a recording, or of a single update, whose defaults of the options of recordings it keeps.
        changes: Option -> text that replaces its value, such as a word in capitals for what only a person knows; ``DROPPED``
            leaves the option out.
        out: Folder of the results; None leaves the option out.
    """
    words: dict[str, str | None] = {}
    for holder in (request.options, request):
        for one in fields(holder):
            value = getattr(holder, one.name)
            if one.name in ("update", "options", "unset", "assumed") or value == _default(holder, one.name):
                continue
            words[option_of(one.name)] = None if value is True else _text(value)
    for option, text in (changes or {}).items():
        words.pop(option, None)
        if text != DROPPED:
            words[option] = text
    if out is not None:
        words["--out"] = str(out)
    ordered = sorted(words, key=lambda option: _place(option, list(words)))
    shown = [word for option in ordered for word in (option, words[option]) if word is not None]
    return shlex.join(["fedveil", "attack", str(request.options.update), *shown])


def option_of(field: str) -> str:
    """The option that sets a field of a request."""
    return OPTION_OF.get(field, "--" + field.replace("_", "-"))


def _default(holder: Request | RecordingRequest, name: str) -> object:
    if isinstance(holder, Request) and name in ("model", "num_classes", "input_shape", "num_examples", "local_steps"):
        # Of a single update 1 is the default of two of them, and saying so once more does no harm.
        return {"model": "", "input_shape": ""}.get(name, 0)
    return next(one.default for one in fields(holder) if one.name == name)


def _text(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _place(option: str, given: list[str]) -> tuple[int, int]:
    known = [option_of(name) for name in FIRST]
    return (known.index(option), 0) if option in known else (len(known), given.index(option))
