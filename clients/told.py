"""What somebody sent and nobody can read, in words; without Flower, so that what reads no message can say it as well."""

from __future__ import annotations

import json
from typing import Any

SHORT = 120
"""Characters of what somebody sent, in an error."""
MOST_SHOWN = 4096
"""Characters of an error that are looked at."""
MOST_JSON = 2**20
"""Characters of JSON that are read of what came in a message: as Python's objects they can take twenty times their memory."""


class RecordError(ValueError):
    """A record that cannot be read."""


def read_json(text: str) -> Any:
    """What a JSON text of a message says.

    Raises:
        RecordError: When it is longer than anybody writes who means well.
        ValueError: When it is no JSON.
        RecursionError: When it is nested deeper than Python goes.
    """
    if len(text) > MOST_JSON:
        raise RecordError(f"{len(text)} characters of JSON came; at most {MOST_JSON} are read")
    return json.loads(text)


class Told(dict[str, Any]):
    """What a record of a message holds; whoever asks it for what it lacks learns what is missing."""

    def __missing__(self, key: str) -> Any:
        raise RecordError(f"the message says nothing of {shortened(key)}; it tells {shortened(list(self))}")


def one_line(text: str, most: int) -> str:
    """What somebody wrote, for a row, a log or a terminal: one line, cut, with escapes in place of what does not print.

    Args:
        text: As it came.
        most: Characters that are kept.
    """
    cut = text[:most]
    return cut if cut.isprintable() else "".join(c if c.isprintable() else _escape(c) for c in cut)[:most]


def _escape(character: str) -> str:
    return " " if character.isspace() and character.isascii() else ascii(character)[1:-1]


def shortened(value: object) -> str:
    """What somebody sent, for an error or a row: as it is written in Python, and cut."""
    text = one_line(str(value), MOST_SHOWN) if isinstance(value, Exception) else repr(value)
    return text if len(text) <= SHORT else f"{text[:SHORT]}... ({len(text)} characters)"
