"""Tables as examples: every cell becomes the number of a category, and a row an "image" of one column of cells.

A row of F columns is (1, F, 1) whole numbers, cell by cell, so that partitions, batches and messages carry it as they carry
images; it is never scaled, normalised or cropped. Category 0 of every column means "missing, or never seen in training".
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from clients.data.images import DataError, Labels, Part

UNSEEN = 0
"""Category of what is missing or was never seen in training."""
MOST_CATEGORIES = 2**24
"""Of a column: a larger number would not be exact as float32, in which examples travel through the clients' code."""
MISSING = ("", "?")
"""Texts that stand for a missing value."""


@dataclass(frozen=True)
class Column:
    """One column of a file.

    Attributes:
        name: For reports and errors.
        numeric: It holds whole numbers, which are put into buckets (see ``bucket``); else every text is a category.
        used: It is part of the examples; the label and weights are not.
    """

    name: str
    numeric: bool = False
    used: bool = True


@dataclass(frozen=True, eq=False)
class TextTable:
    """A file as it was read: of every column its different texts, and which of them each line has.

    Attributes:
        path: The file, for errors.
        texts: Per column, its different texts without blanks around them.
        index: Per column (N,), which text each line has.
    """

    path: Path
    texts: tuple[list[str], ...]
    index: tuple[NDArray[np.int64], ...]

    def __len__(self) -> int:
        return len(self.index[0])

    def line_of(self, column: int, text: int) -> int:
        """The first line, counted from 1, that has that text."""
        return int(np.flatnonzero(self.index[column] == text)[0]) + 1


@dataclass(frozen=True, eq=False)
class EncodedTables:
    """Training and test part as numbers of categories.

    Attributes:
        train: (N, F) int32.
        test: (M, F) int32.
        columns: Names of the F columns.
        cardinalities: Categories of each column, ``UNSEEN`` among them; every number is below.
    """

    train: NDArray[np.int32]
    test: NDArray[np.int32]
    columns: tuple[str, ...]
    cardinalities: tuple[int, ...]


def bucket(value: int) -> int:
    """The bucket of a whole number: itself up to 2, above 3 + floor(ln(value)^2).

    Source: Juan et al., "Field-aware Factorization Machines for CTR Prediction", RecSys 2016, and their code for Criteo's contest.
    """
    return value if value <= 2 else 3 + int(np.log(value) ** 2)


def read_table(path: Path, columns: Sequence[Column], delimiter: str) -> TextTable:
    """Reads a text file without a header line, one example a line.

    Args:
        path: The file.
        columns: All of its columns, in order.
        delimiter: Between columns; nothing is quoted.

    Raises:
        DataError: When the file is empty or a line has another number of columns, naming file and line.
    """
    import pyarrow as pa  # type: ignore[import-untyped]
    from pyarrow import csv

    if not path.stat().st_size:
        raise DataError(f"{path} is empty; expected lines of {len(columns)} columns")
    names = [str(at) for at in range(len(columns))]
    wrong: list[str] = []

    def refuse(row: Any) -> str:
        wrong.append(f"line {row.number} has {row.actual_columns} columns")
        return "error"

    try:
        table = csv.read_csv(
            path,
            # One thread: with several, nobody knows the number of a line.
            read_options=csv.ReadOptions(column_names=names, use_threads=False),
            parse_options=csv.ParseOptions(
                delimiter=delimiter, quote_char=False, ignore_empty_lines=False, invalid_row_handler=refuse
            ),
            convert_options=csv.ConvertOptions(
                column_types=dict.fromkeys(names, pa.dictionary(pa.int32(), pa.string())),
                strings_can_be_null=False,
                null_values=[],
            ),
        )
    except pa.ArrowInvalid as error:
        why = wrong[0] if wrong else str(error)
        raise DataError(
            f"{path}: {why}; expected {len(columns)} on every line, separated by {delimiter!r}: {_listed(columns)}"
        ) from error
    texts, index = [], []
    for name in names:
        whole = table.column(name).unify_dictionaries().combine_chunks()
        whole = whole.chunk(0) if isinstance(whole, pa.ChunkedArray) else whole
        texts.append([text.strip() for text in whole.dictionary.to_pylist()])
        index.append(whole.indices.to_numpy().astype(np.int64))
    return TextTable(path, tuple(texts), tuple(index))


def encode(train: TextTable, test: TextTable, columns: Sequence[Column], least: int = 1) -> EncodedTables:
    """Numbers the categories of the training part in the order of their texts or buckets, from 1.

    Args:
        train: Training part.
        test: Test part, with the same columns; what it alone has becomes ``UNSEEN``.
        columns: Of both files.
        least: A category needs so many lines of the training part; rarer ones are ``UNSEEN`` as well.

    Raises:
        DataError: When a numeric column holds something else, or a column has too many categories.
    """
    names, sizes, codes = [], [], ([], [])  # type: ignore[var-annotated]
    for at, column in enumerate(columns):
        if not column.used:
            continue
        keys = [_keys(part, at, column) for part in (train, test)]
        counts: Counter[Hashable] = Counter()
        for key, count in zip(keys[0], np.bincount(train.index[at], minlength=len(keys[0])), strict=True):
            counts[key] += int(count)
        kept: list[Any] = sorted(key for key, count in counts.items() if key is not None and count >= least)
        if len(kept) >= MOST_CATEGORIES:
            raise DataError(
                f"{train.path}: column {column.name!r} has {len(kept)} categories; allowed: below {MOST_CATEGORIES}"
            )
        number = {key: code for code, key in enumerate(kept, UNSEEN + 1)}
        for part, own, found in zip((train, test), keys, codes, strict=True):
            lookup = np.array([number.get(key, UNSEEN) for key in own], dtype=np.int32)
            found.append(lookup[part.index[at]])
        names.append(column.name)
        sizes.append(len(kept) + 1)
    return EncodedTables(np.stack(codes[0], 1), np.stack(codes[1], 1), tuple(names), tuple(sizes))


def table_part(codes: NDArray[np.int32], labels: Labels) -> Part:
    """A part of a source whose examples are rows (N, F) of categories: images (N, 1, F, 1) of int32."""
    tensor = torch.from_numpy(np.ascontiguousarray(codes))[:, None, :, None]
    if len(codes) != len(labels):
        raise DataError(f"there are {len(codes)} rows but {len(labels)} labels")

    def read(indices: NDArray[np.intp], size: int) -> Tensor:
        if size:
            raise DataError(f"image-size is {size}; allowed for rows of a table: 0, as there is nothing to scale")
        return tensor[torch.from_numpy(indices)]

    def shape(*_: object) -> tuple[int, int, int]:
        return 1, codes.shape[1], 1

    return Part(labels.astype(np.int64), read, shape)


def labels_of(table: TextTable, column: int, positive: Sequence[str], negative: Sequence[str]) -> Labels:
    """Classes (N,): 1 for the texts in ``positive``, 0 for those in ``negative``.

    Raises:
        DataError: For any other text, naming file and line.
    """
    known = dict.fromkeys(negative, 0) | dict.fromkeys(positive, 1)
    for at, text in enumerate(table.texts[column]):
        if text not in known:
            raise DataError(
                f"{table.path}: line {table.line_of(column, at)} has the label {text!r}; allowed: {' or '.join(map(repr, known))}"
            )
    found: Labels = np.array([known[text] for text in table.texts[column]], dtype=np.int64)[table.index[column]]
    return found


def _keys(table: TextTable, at: int, column: Column) -> list[Any]:
    """What each text of a column counts as: a bucket, the text itself, or None where it is missing."""
    found: list[Any] = []
    for place, text in enumerate(table.texts[at]):
        if text in MISSING:
            found.append(None)
        elif column.numeric:
            try:
                found.append(bucket(int(text)))
            except ValueError as error:
                raise DataError(
                    f"{table.path}: line {table.line_of(at, place)} has {text!r} in column {column.name!r}; expected a whole "
                    "number, or nothing where it is missing"
                ) from error
        else:
            found.append(text)
    return found


def _listed(columns: Sequence[Column]) -> str:
    return ", ".join(column.name for column in columns)
