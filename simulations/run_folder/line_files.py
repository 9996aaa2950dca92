r"""Files of JSON lines: one JSON text a line, in ASCII, and a line ends at a line feed alone.

``str.splitlines`` and many readers also end a line at U+2028, U+2029, U+0085 and some control characters. Any text may hold
them, also one that a client sent. Writers here escape all of them, and readers here do not split at them.
"""

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from clients.wire.texts import regular
from simulations.settings.errors import UNREADABLE, ConfigError, undamaged

T = TypeVar("T")
HALF = rb"\ud"
"""How JSON begins to write half of a character: bytes that are UTF-8 hold none."""


@dataclass(frozen=True)
class Damage:
    """A line that cannot be read: its number from 1, whether only empty lines follow, and what its reader said."""

    line: int
    last: bool
    why: str


def json_line(value: Any) -> str:
    """One line with its line feed, in ASCII; ``ValueError`` on NaN and infinities, which JSON does not have."""
    return json.dumps(value, allow_nan=False) + "\n"


def append_line(path: Path, value: Any) -> None:
    """Add a line to a file; it is on the disk when this returns."""
    with path.open("a", encoding="utf-8") as file:
        file.write(json_line(value))
        file.flush()
        os.fsync(file.fileno())


def read_json_lines(
    path: Path, read: Callable[[Any], T], *, replace: bool = False
) -> tuple[list[tuple[int, T]], list[Damage]]:
    """Results of ``read`` for the readable lines, with line numbers, and the unreadable lines; both empty for a missing file.

    ``read`` parses a decoded line, and damages it by an error. With ``replace``, bytes that are no UTF-8, and halves of characters,
    become replacement characters; else such bytes damage their line.
    """
    if not path.exists():
        return [], []
    lines = [(at, line) for at, line in enumerate(regular(path).read_bytes().split(b"\n"), 1) if line.strip()]
    readable, damaged = list[tuple[int, T]](), list[Damage]()
    for at, line in lines:
        try:
            value = json.loads(line.decode(errors="replace" if replace else "strict"))
            halves = replace and HALF in line.lower()
            readable.append((at, read(whole_characters(value) if halves else value)))
        except UNREADABLE as error:
            damaged.append(Damage(at, at == lines[-1][0], f"{type(error).__name__}: {str(error)[:200]}"))
    return readable, damaged


def whole_characters(value: Any) -> Any:
    r"""A JSON value in whose texts a replacement character stands for each half of a character, such as "\ud800".

    JSON can hold them, and nothing that writes UTF-8 can.
    """
    if isinstance(value, str):
        return value if value.isascii() else value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, dict):
        return {whole_characters(key): whole_characters(inner) for key, inner in value.items()}
    return [whole_characters(inner) for inner in value] if isinstance(value, list) else value


def kept_lines(path: Path, read: Callable[[Any], T]) -> tuple[list[T], str]:
    """Lines of a resumed run, and a text on the loss where the last line was cut off; ``ConfigError`` for other damage."""
    with undamaged(path):
        readable, damaged = read_json_lines(path, read)
    for lost in damaged:
        if not lost.last:
            raise ConfigError(
                f"resume: line {lost.line} of {path} is damaged ({lost.why}); restore the file from a copy, or delete that line, "
                "which loses what it says"
            )
    if damaged and not readable:
        raise ConfigError(
            f"resume: {path} is damaged: none of its lines can be read ({damaged[0].why}); restore it from a copy, or begin a run "
            "in another folder"
        )
    values = [value for _, value in readable]
    if not damaged:
        return values, ""
    return values, (
        f"{path.name}: line {damaged[0].line} is cut off ({damaged[0].why}) and was left out; what it said, and what may have "
        "followed it, is lost"
    )
