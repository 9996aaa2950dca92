"""Reading ``rows.jsonl`` whatever it holds, and writing ``rows.csv``."""

import csv
import io
import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, TypeVar

from attacks.metrics.names import Role
from attacks.metrics.registry import metric_of
from simulations.report.text import count
from simulations.run_folder.line_files import read_json_lines
from simulations.run_folder.rows import NAMES, Row

FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")
"""Beginnings of a cell that a spreadsheet computes, or passes over to find such a one."""
Item = TypeVar("Item")
Key = TypeVar("Key")


def grouped(items: Iterable[Item], key: Callable[[Item], Key]) -> dict[Key, list[Item]]:
    """Items by a key of each, both in order of appearance."""
    groups: dict[Key, list[Item]] = defaultdict(list)
    for item in items:
        groups[key(item)].append(item)
    return groups


def read_lines(path: Path, read: Callable[[Any], Item]) -> tuple[list[tuple[int, Item]], list[str]]:
    """What ``read`` makes of a file's decoded lines, with their numbers, nothing of a missing one; and notes on lines left out."""
    if not path.exists():
        return [], [f"{path.name} is missing"]
    if not path.is_file():
        return [], [f"{path.name} is no file"]
    lines, damaged = read_json_lines(path, read, replace=True)
    notes = [
        f"{path.name}: {'the last line is cut off and was left out' if lost.last else f'line {lost.line} is not JSON'}"
        for lost in damaged
    ]
    return lines, notes


@dataclass(frozen=True)
class RowFile:
    """Content of ``rows.jsonl``.

    Attributes:
        rows: In file order, each once.
        lines: Number of its lines, empty ones left out.
        damage: A note on each line that could not be read.
        notes: What else a reader must know, such as lines that repeat another.
    """

    rows: Sequence[Row]
    lines: int = 0
    damage: Sequence[str] = ()
    notes: Sequence[str] = ()

    def damaged(self, folder: Path) -> str:
        """A sentence that counts the damaged lines of the file in ``folder``, or "" where there is none."""
        some = len(self.damage)
        what = "is damaged" if some == 1 else "are damaged"
        return f"{folder}: {some} of {count(self.lines, 'line')} of rows.jsonl {what} and left out" if some else ""


def read_rows(path: Path) -> tuple[list[Row], list[str]]:
    """Rows of ``path`` in file order, and notes on lines that could not be read or that repeat another."""
    row_file = read_row_file(path)
    return list(row_file.rows), [*row_file.damage, *row_file.notes]


def read_row_file(path: Path) -> RowFile:
    """Read a file of rows; no content of the file makes it fail."""
    found, notes = read_lines(path, _read)
    if not path.is_file():
        return RowFile([], notes=notes)
    lines = len(found) + len(notes)
    notes += [f"{path.name}: line {number} is not a row: {of}" for number, of in found if isinstance(of, ValueError)]
    read = [of for _, of in found if not isinstance(of, ValueError)]
    rows = list(dict(read).values())
    repeated, retired = len(read) - len(rows), sum(row.role is Role.NULL_CONTROL for row in rows)
    others = [f"{path.name}: {repeated} rows repeat another row in every field and were left out"] if repeated else []
    if retired:
        others.append(f"{path.name}: {count(retired, 'row')} of null controls, which earlier versions had: not shown")
    return RowFile(rows, lines, notes, others)


def _read(data: Any) -> tuple[tuple[Any, ...], Row] | ValueError:
    """The row of a decoded line behind all that it says, or why there is none."""
    try:
        row = _measured(Row.from_json(data))
    except ValueError as error:
        return error
    return (*(getattr(row, name) for name in NAMES if name != "extra"), json.dumps(row.extra, sort_keys=True)), row


def _measured(row: Row) -> Row:
    """The row, or a failed one where its value is outside the range of its metric."""
    low, high = metric_of(row.metric).range
    if row.value is None or row.status == "failed" or low <= row.value <= high:
        return row
    message = row.message or f"value is {row.value:g}; expected a number from {low:g} to {high:g}"
    return replace(row, value=None, ci_low=None, ci_high=None, worst=None, status="failed", message=message)


def to_csv(rows: Sequence[Row]) -> str:
    """All rows as one table: threat cards as columns ``card.NAME``, unknown fields last, without ROC curves."""
    names = [spec.name for spec in fields(Row) if spec.name not in {"card", "extra"}]
    cards = {id(row.card): row.card.to_json() for row in rows}  # rows share cards
    keys = sorted({key for card in cards.values() for key in card})
    # A curve of a hundred points is no cell of a table; rows.jsonl has it.
    extras = sorted({key for row in rows for key in row.extra} - {"roc", "without_client"})
    text = io.StringIO()
    # All texts are quoted: a message may hold a carriage return, which ends a line for many readers.
    writer = csv.writer(text, lineterminator="\n", quoting=csv.QUOTE_NONNUMERIC)
    writer.writerow(map(_cell, [*names, *(f"card.{key}" for key in keys), *extras]))
    of_card = {at: [_cell(card.get(key)) for key in keys] for at, card in cards.items()}
    for row in rows:
        cells = (_cell(getattr(row, name)) for name in names)
        writer.writerow([*cells, *of_card[id(row.card)], *(_cell(row.extra.get(key)) for key in extras)])
    return text.getvalue()


def _cell(value: Any) -> Any:
    """A cell as CSV has it: a number stays one, and a text that begins like a formula gets an apostrophe (OWASP, "CSV injection").

    A client chose some of these texts, and spreadsheets compute what begins with one of ``FORMULA``.
    """
    if isinstance(value, int | float):
        return value
    text = "" if value is None else str(value)
    return f"'{text}" if text.startswith(FORMULA) else text
