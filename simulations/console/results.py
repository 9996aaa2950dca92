"""The results of a command: as a table, as one line of JSON, or not at all."""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any

import typer
from rich import box
from rich.console import JustifyMethod
from rich.table import Table
from rich.text import Text

from clients.wire.texts import changed
from simulations.console.terminal import Terminal

SHORT_WORD = len("recognisable")
"""Characters of a word that a narrow table does not break."""
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print errors only.")]
AsJson = Annotated[
    bool,
    typer.Option(
        "--json",
        help="Print errors, and at the end one line of JSON with what the table shows; see above for its keys.",
    ),
]


def terminal_for(console: Terminal, *, quiet: bool) -> Terminal:
    """The terminal for progress and tables, or a silent one where they are not wanted."""
    return Terminal(quiet=True) if quiet else console


def print_json(about: Mapping[str, Any]) -> None:
    """Print a line of JSON; numbers that are not finite are null."""
    print(json.dumps(finite(about), ensure_ascii=False, allow_nan=False, default=str))


def finite(value: Any) -> Any:
    """The same value with null for numbers that JSON cannot hold, such as the PSNR of equal images."""
    return changed(value, lambda leaf: None if isinstance(leaf, float) and not math.isfinite(leaf) else leaf)


def table(texts: Sequence[str], numbers: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    """A table whose cells hold no markup: columns under ``texts``, and behind them columns of ``numbers``, aligned right."""
    built, lines = Table(box=box.SIMPLE_HEAD, pad_edge=False), list(rows)
    for at, name in enumerate([*texts, *numbers]):
        words = [len(word) for cell in (name, *(line[at] for line in lines if at < len(line))) for word in cell.split()]
        justify: JustifyMethod = "left" if at < len(texts) else "right"
        built.add_column(name, overflow="fold", justify=justify, min_width=min(max(words, default=0), SHORT_WORD))
    for row in lines:
        built.add_row(*map(Text, row))
    return built
