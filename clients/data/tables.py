"""Tables as examples: every cell becomes the number of a category, and a row an "image" of one column of cells.

A row of F columns is (1, F, 1) whole numbers, cell by cell, so that partitions, batches and messages carry it as they carry
images; it is never scaled, normalised or cropped. Category 0 of every column means "missing, or never seen in training".
"""

import math
import re
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from clients.data.images import DataError, Labels, Source, array_part

UNSEEN = 0
"""Category of what is missing or was never seen in training."""
MOST_CATEGORIES = 2**24
"""Of a column: a larger number would not be exact as float32, in which examples travel through the clients' code."""
MISSING = ("", "?")
"""Texts that stand for a missing value."""
BLOCK = 4 * 2**20
"""Bytes of a file that are parsed at once."""
_NUMBER = re.compile(r"[+-]?[0-9]+\Z")


@dataclass(frozen=True)
class TableColumn:
    """One column of a file.

    Attributes:
        numeric: It holds whole numbers, which are put into buckets (see ``bucket``); else every text is a category.
        used: It is part of the examples; the label and weights are not.
        kept: It is held at all; its cells are only counted else.
    """

    name: str
    numeric: bool = False
    used: bool = True
    kept: bool = True


@dataclass(frozen=True)
class Lines:
    """``count`` consecutive lines of a file (None: all that follow) from number ``first``, which starts at byte ``offset``."""

    first: int = 0
    offset: int = 0
    count: int | None = None


@dataclass(frozen=True, eq=False)
class TextTable:
    """Lines of a file as they were read: of every column its different texts, and which of them each line has.

    Attributes:
        first: Lines of the file before them.
        texts: Per column, its different texts without blanks around them; none of columns that are not kept.
        index: Per column (N,), which text each line has.
    """

    path: Path
    first: int
    length: int
    texts: tuple[list[str], ...]
    index: tuple[NDArray[np.int32], ...]

    def __len__(self) -> int:
        return self.length

    def line_of(self, column: int, text: int) -> int:
        """The first line of the file, counted from 1, that has that text."""
        return self.first + int(np.flatnonzero(self.index[column] == text)[0]) + 1


def bucket(value: int) -> int:
    """The bucket of a whole number: itself up to 2, above 3 + floor(ln(value)^2).

    Source: Juan et al., "Field-aware Factorization Machines for CTR Prediction", RecSys 2016, and their code for Criteo's contest.
    """
    return value if value <= 2 else 3 + int(math.log(value) ** 2)


def read_table(path: Path, columns: Sequence[TableColumn], delimiter: str, lines: Lines | None = None) -> TextTable:
    """Read a text file without a header line, one example a line, in blocks; 4 bytes are held of a cell of the kept columns.

    ``columns`` are all of its columns, in order, with a delimiter between; nothing is quoted. Without ``lines`` all are read.

    Raises:
        DataError: When the file is empty or no text, a line has another number of columns, or a numeric column something
            else, naming file and line.
    """
    import pyarrow as pa  # type: ignore[import-untyped]

    lines = lines or Lines()
    if not path.stat().st_size:
        raise DataError(f"{path} is empty; expected lines of {len(columns)} columns")
    names = [str(at) for at in range(len(columns))]
    wrong: list[str] = []

    def refuse(row: Any) -> str:
        wrong.append(f"line {lines.first + row.number} has {row.actual_columns} columns")
        return "error"

    known: list[dict[str, int]] = [{} for _ in columns]
    blocks: list[list[NDArray[np.int32]]] = [[] for _ in columns]
    length = 0
    try:
        with path.open("rb") as file:
            file.seek(lines.offset)
            for batch in _blocks(file, names, columns, delimiter, refuse):
                taken = batch.num_rows if lines.count is None else min(batch.num_rows, lines.count - length)
                for name in batch.schema.names:
                    cells = batch.column(name)
                    own = known[int(name)]
                    number = [own.setdefault(text.strip(), len(own)) for text in cells.dictionary.to_pylist()]
                    codes = np.array(number, dtype=np.int32)[cells.indices.to_numpy(zero_copy_only=False)[:taken]]
                    blocks[int(name)].append(codes)
                length += taken
                if length == lines.count:
                    break
    except pa.ArrowInvalid as error:
        if not wrong and "UTF8" in str(error):
            raise DataError(f"{path} is not UTF-8 text; expected a text file, saved as UTF-8") from error
        raise DataError(
            f"{path}: {wrong[0] if wrong else error}; expected {len(columns)} on every line, separated by {delimiter!r}: "
            f"{', '.join(column.name for column in columns)}"
        ) from error
    index = tuple(np.concatenate(parts) if parts else np.empty(0, np.int32) for parts in blocks)
    table = TextTable(path, lines.first, length, tuple(list(own) for own in known), index)
    for at, column in enumerate(columns):
        if column.numeric and column.kept:
            check_texts(table, at, column, lambda text: text in MISSING or _NUMBER.match(text), "a whole number")
    return table


def _blocks(
    file: IO[bytes], names: list[str], columns: Sequence[TableColumn], delimiter: str, refuse: Callable[[Any], str]
) -> Any:
    import pyarrow as pa
    from pyarrow import csv

    return csv.open_csv(
        file,
        # One thread: with several, the number of a line is unknown.
        read_options=csv.ReadOptions(column_names=names, use_threads=False, block_size=BLOCK),
        parse_options=csv.ParseOptions(
            delimiter=delimiter, quote_char=False, ignore_empty_lines=False, invalid_row_handler=refuse
        ),
        convert_options=csv.ConvertOptions(
            column_types=dict.fromkeys(names, pa.dictionary(pa.int32(), pa.string())),
            include_columns=[name for name, column in zip(names, columns, strict=True) if column.kept],
            strings_can_be_null=False,
            null_values=[],
        ),
    )


def split_lines(path: Path, share: int, limits: tuple[int, int] = (0, 0)) -> tuple[Lines, Lines]:
    """Split a file into its first lines and the last of ``share`` equal parts, each up to a limit of lines (0: no limit)."""
    counts, sizes, last = [0], [0], b"\n"
    with path.open("rb") as file:
        while block := file.read(BLOCK):
            counts.append(counts[-1] + block.count(b"\n"))
            sizes.append(sizes[-1] + len(block))
            last = block[-1:]
        whole = counts[-1] + (last != b"\n")
        tests = whole // share
        if not tests:
            raise DataError(f"{path} has {whole} lines; expected {share} or more, of which the last tenth tests")
        cut = whole - tests
        # The block in which line number cut starts: behind the cut-th end of a line.
        at = next(place for place, count in enumerate(counts) if count >= cut) - 1
        file.seek(sizes[at])
        block, end = file.read(BLOCK), -1
        for _ in range(cut - counts[at]):
            end = block.index(b"\n", end + 1)
    first, second = (min(limit or size, size) for limit, size in zip(limits, (cut, tests), strict=True))
    return Lines(0, 0, first), Lines(cut, sizes[at] + end + 1, second)


def table_source(
    tables: Sequence[TextTable],
    columns: Sequence[TableColumn],
    labels: Sequence[Labels],
    class_names: tuple[str, str],
    least: int = 1,
) -> Source:
    """The source of the training and the test part of a table, whose cells are never scaled; ``labels`` of both.

    Categories of the training part are numbered in the order of their texts or buckets, from 1. A category needs ``least`` lines
    of the training part; rarer ones are ``UNSEEN``, as is what the test part alone has.

    Raises:
        DataError: When a column has too many categories, or no category of any column has enough lines.
    """
    used = {at: column for at, column in enumerate(columns) if column.used}
    sizes: list[int] = []
    # Filled column by column: stacking columns would hold the numbers twice.
    codes = [np.empty((len(part), len(used)), dtype=np.int32) for part in tables]
    for at, column in used.items():
        encoded, size = _encoded(tables, at, column, least)
        for whole, own in zip(codes, encoded, strict=True):
            whole[:, len(sizes)] = own
        sizes.append(size)
    if max(sizes) == 1:
        raise DataError(
            f"{tables[0].path}: no category of any column is on {least} of {len(tables[0])} training lines, so that nothing can be "
            "learned"
        )
    parts = [array_part(own[:, None, :, None], of) for own, of in zip(codes, labels, strict=True)]
    names = tuple(column.name for column in used.values())
    return Source(parts[0], parts[1], class_names, (0.0,), (1.0,), names, tuple(sizes))


def _encoded(
    tables: Sequence[TextTable], at: int, column: TableColumn, least: int
) -> tuple[list[NDArray[np.int32]], int]:
    """Categories of a column in each part, (N,), and how many there are with ``UNSEEN``."""
    keys = [_keys(part, at, column) for part in tables]
    counts: Counter[Hashable] = Counter()
    for key, count in zip(keys[0], np.bincount(tables[0].index[at], minlength=len(keys[0])), strict=True):
        counts[key] += int(count)
    kept: list[Any] = sorted(key for key, count in counts.items() if key is not None and count >= least)
    if len(kept) >= MOST_CATEGORIES:
        raise DataError(
            f"{tables[0].path}: column {column.name!r} has {len(kept)} categories; allowed: below {MOST_CATEGORIES}"
        )
    number = {key: code for code, key in enumerate(kept, UNSEEN + 1)}
    lookups = (np.array([number.get(key, UNSEEN) for key in own], dtype=np.int32) for own in keys)
    return [lookup[part.index[at]] for part, lookup in zip(tables, lookups, strict=True)], len(kept) + 1


def labels_of(table: TextTable, column: int, positive: Sequence[str], negative: Sequence[str]) -> Labels:
    """Classes (N,): 1 for the texts in ``positive``, 0 for those in ``negative``; ``DataError`` for any other text."""
    known = dict.fromkeys(negative, 0) | dict.fromkeys(positive, 1)
    for at, text in enumerate(table.texts[column]):
        if text not in known and (table.index[column] == at).any():
            line = table.line_of(column, at)
            allowed = f"allowed: {' or '.join(map(repr, known))}"
            row = line - 1 - table.first
            cells = (texts[index[row]] for texts, index in zip(table.texts, table.index, strict=True) if len(index))
            what = "is empty" if not text and not any(cells) else f"has the label {text!r}; {allowed}"
            raise DataError(f"{table.path}: line {line} {what}")
    codes: Labels = np.array([known.get(text, -1) for text in table.texts[column]], dtype=np.int64)[table.index[column]]
    return codes


def check_texts(table: TextTable, at: int, column: TableColumn, fits: Callable[[str], object], expected: str) -> None:
    """Raise ``DataError`` for the first text in column ``at`` of the lines that does not fit."""
    for place, text in enumerate(table.texts[at]):
        if not fits(text) and (table.index[at] == place).any():
            raise DataError(
                f"{table.path}: line {table.line_of(at, place)} has {text!r} in column {column.name!r}; expected {expected}, or "
                "nothing where it is missing"
            )


def _keys(table: TextTable, at: int, column: TableColumn) -> list[Any]:
    """What each text of a column counts as: a bucket, the text itself, or None where it is missing."""
    texts = table.texts[at]
    if not column.numeric:
        return [None if text in MISSING else text for text in texts]
    # A text of a line behind the last one, in the same block, may be no number: nothing has it.
    return [bucket(int(text)) if _NUMBER.match(text) else None for text in texts]
