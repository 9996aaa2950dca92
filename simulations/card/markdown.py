"""Markdown in which texts that a file, a client or an app chose make no markup, no link and no path, and stay on one line."""

import re
from collections.abc import Mapping
from typing import Any

from clients.wire.texts import plain
from simulations.report.page.templates import environment
from simulations.report.text import NOTHING

LEFT_OUT = "(left out)"
"""In place of what looks like an address, a path or a file of data."""
LONGEST = 2000
"""Characters of one text."""
PRIVATE = re.compile(
    r"""\b[a-z][\w+.-]{0,30}://\S*|\bwww\.\S+|[\w.+-]+@[\w-]+\.[\w.-]+
    |(?<![\w.)\]])(?:[a-z]:|~[\w.-]*|\.{1,2})?[/\\]{1,2}[\w.~][^\s'",;|)\]]*
    |[\w-]+(?:[./\\][\w-]+)*\.(?:png|jpe?g|gif|bmp|tiff?|webp|dcm|nii|npy|npz|csv|tsv|parquet|txt|zip|gz|pth?|safetensors)\b""",
    re.IGNORECASE | re.VERBOSE,
)
"""Addresses, absolute paths, and names of files that may hold data or weights."""
ENTITIES = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;"})


class Ready(str):
    """Markdown that is written as it is."""

    __slots__ = ()


def render(context: Mapping[str, Any]) -> str:
    """The card, from its template, of which every expression passes through ``shown``."""
    card = environment().overlay(autoescape=False, finalize=shown).get_template("card")
    return re.sub(r"\n{3,}", "\n\n", card.render({**context, "code": code}))


def shown(value: object) -> str:
    """A value as prose, which begins no list, no underline of a heading and no metadata."""
    if isinstance(value, Ready):
        return value
    prose = re.sub(r"([\\`*_{}\[\]|#~$])", r"\\\1", _line(value)).translate(ENTITIES)
    return re.sub(r"^(?:(\d+)(?=[.)](?:\s|$))|(?=[-+=]))", r"\1\\", prose)


def code(value: str, cell: bool = False) -> Ready:
    """Text of a defence or an attack; in a ``cell`` of a table its bars end no column."""
    words = _line(value).translate(str.maketrans("`<>", "'()"))
    return Ready(f"`{words.replace('|', chr(92) + '|') if cell else words}`" if words else NOTHING)


def _line(value: object) -> str:
    line = " ".join(str(value)[: 2 * LONGEST].split())
    return PRIVATE.sub(LEFT_OUT, plain(line if len(line) <= LONGEST else f"{line[:LONGEST]}…"))
