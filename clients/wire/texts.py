"""Open files from outside, and describe what cannot be read; without Flower, as code that reads no message uses it too."""

import errno
import json
import logging
import unicodedata
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from defenses.checks import cut
from defenses.checks import shown as shown_within

SHORT = 120
"""Characters of a received value in an error."""
LONGEST = 160
"""Characters of a value that a user wrote, in an error."""
MOST_SHOWN = 4096
"""Characters of an error that are looked at."""
MOST_JSON = 2**20
"""Characters of JSON that are read of what came in a message: as Python's objects they can take twenty times their memory."""


class RecordError(ValueError):
    """A record that cannot be read."""


def read_json(text: str) -> Any:
    """Parse a JSON text of a message.

    Raises:
        RecordError: When the text is longer than any text of our own clients.
        ValueError: When the text is no JSON.
        RecursionError: When the text is nested too deep for Python.
    """
    require_short(text)
    return json.loads(text)


def regular(path: Path) -> Path:
    """Give back the path of what may be opened; ``OSError`` for a pipe, socket or device, whose reader may wait for ever."""
    if path.exists() and not path.is_file() and not path.is_dir():
        raise OSError(errno.EINVAL, "it is a pipe, a socket or a device, and no file", str(path))
    return path


def read_object(path: Path) -> dict[str, Any]:
    """Read a file of one JSON object; ``OSError``, ``ValueError`` or ``RecursionError`` for any other."""
    content = json.loads(regular(path).read_text(encoding="utf-8"))
    if not isinstance(content, dict):
        raise ValueError(f"it holds a {type(content).__name__}; allowed: an object")
    return content


def changed(value: Any, leaf: Callable[[Any], Any]) -> Any:
    """A value with texts for the keys of its mappings, lists for its sequences, and ``leaf`` of all that is neither."""
    if isinstance(value, Mapping):
        return {str(key): changed(inner, leaf) for key, inner in value.items()}
    return [changed(inner, leaf) for inner in value] if isinstance(value, list | tuple) else leaf(value)


def require_short(text: str) -> None:
    """Raise ``RecordError`` for a JSON text that is longer than any text of our own clients."""
    if len(text) > MOST_JSON:
        raise RecordError(f"{len(text)} characters of JSON came; at most {MOST_JSON} are read")


class Received(dict[str, Any]):
    """Content of a message's record; the error for a missing key names the key."""

    def __missing__(self, key: str) -> Any:
        raise RecordError(f"the message lacks {shortened(key)}; it holds {shortened(list(self))}")


def one_line(text: str, most: int) -> str:
    """A foreign text for a row, a log or a terminal: one line of ``most`` characters, with escapes for what does not print."""
    cut = text[:most]
    return cut if cut.isprintable() else "".join(c if c.isprintable() else _escape(c) for c in cut)[:most]


def _escape(character: str) -> str:
    return " " if character.isspace() and character.isascii() else ascii(character)[1:-1]


def shortened(value: object) -> str:
    """A received value for an error or a row: in Python's notation, cut to a maximum length."""
    return cut(one_line(str(value), MOST_SHOWN) if isinstance(value, Exception) else repr(value), SHORT)


def shown(value: object) -> str:
    """A value that a user wrote, for an error; a long text is cut and its length is added."""
    return shown_within(value, LONGEST)


_TURNS = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
"""Characters that change the direction of a line, so that it reads otherwise than it is."""
_UNSAFE = ("Cc", "Cs", "Zl", "Zp")
"""Kinds of characters that a terminal obeys, that cannot be written in UTF-8, or that break a line."""


def plain(text: str) -> str:
    """Escape every character that controls a terminal, in Python's notation: ESC as ``chr(92) + "x1b"``.

    Line feeds and tabs stay. For all text that other code, another process or a file hands over.
    """
    return "".join(_visible(char) for char in text) if not text.isascii() or not text.isprintable() else text


def _visible(char: str) -> str:
    if char in "\n\t" or (unicodedata.category(char) not in _UNSAFE and char not in _TURNS):
        return char
    return char.encode("unicode_escape", "backslashreplace").decode()


def log_plainly() -> None:
    """Make Flower's logger, which ours share, write messages and tracebacks ``plain`` from now on."""
    log = logging.getLogger("flwr")
    if not any(isinstance(added, _PlainRecords) for added in log.filters):
        log.addFilter(_PlainRecords())


class _PlainRecords(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        record.msg, record.args = plain(record.getMessage()), ()
        if record.exc_info:
            record.exc_text = plain(record.exc_text or logging.Formatter().formatException(record.exc_info))
        return True
