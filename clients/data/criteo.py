"""Criteo's display advertising data: who clicked, 13 whole numbers and 26 hashed categories of every advertisement shown."""

from __future__ import annotations

import re
from pathlib import Path

from clients.data.images import DataError, Source
from clients.data.tables import Column, EncodedTables, TextTable, encode, labels_of, read_table, table_part

LABEL = Column("label", used=False)
NUMBERS = tuple(Column(f"I{at}", numeric=True) for at in range(1, 14))
CATEGORIES = tuple(Column(f"C{at}") for at in range(1, 27))
LEAST = 10
"""Lines of the training part that a category needs, as is usual with these data: most hashes are seen once."""
TEST_SHARE = 10
"""One line in so many, the last of them, tests: the published test file has no labels."""
FIELDS = {"categorical": CATEGORIES, "all": (*NUMBERS, *CATEGORIES)}
"""What follows the colon of ``criteo:`` -> the columns of an example."""
_HASH = re.compile(r"[0-9a-f]{1,8}\Z")


def criteo(path: Path, fields: str = "categorical") -> Source:
    """A labelled file in the published format (``train.txt``): tab-separated, missing values empty.

    The first nine tenths train, in the order of the file, which is that of time; the rest tests.

    Args:
        path: The file.
        fields: A key of ``FIELDS``: "categorical" is the shuffling paper's 26 fields, "all" puts the 13 numbers in buckets before.

    Raises:
        DataError: When the file is damaged, or too short for two parts.

    Source: Criteo Labs, Kaggle Display Advertising Challenge, 2014.
    """
    if fields not in FIELDS:
        raise DataError(f"criteo:{fields}; allowed: {' or '.join(f'criteo:{name}' for name in FIELDS)}")
    used = {column.name for column in FIELDS[fields]}
    columns = tuple(Column(c.name, c.numeric, c.name in used) for c in (LABEL, *NUMBERS, *CATEGORIES))
    whole = read_table(path, columns, "\t")
    _check_hashes(whole)
    labels, tests = labels_of(whole, 0, ["1"], ["0"]), len(whole) // TEST_SHARE
    if not tests:
        raise DataError(f"{path} has {len(whole)} lines; expected {TEST_SHARE} or more, of which the last tenth tests")
    cut = len(whole) - tests
    parts = [
        TextTable(path, whole.texts, tuple(i[rows] for i in whole.index)) for rows in (slice(cut), slice(cut, None))
    ]
    encoded: EncodedTables = encode(parts[0], parts[1], columns, LEAST)
    return Source(
        table_part(encoded.train, labels[:cut]),
        table_part(encoded.test, labels[cut:]),
        ("no click", "click"),
        (0.0,),
        (1.0,),
        encoded.columns,
        encoded.cardinalities,
    )


def _check_hashes(table: TextTable) -> None:
    for at, column in enumerate(CATEGORIES, 1 + len(NUMBERS)):
        for place, text in enumerate(table.texts[at]):
            if text and not _HASH.match(text):
                raise DataError(
                    f"{table.path}: line {table.line_of(at, place)} has {text!r} in column {column.name!r}; expected up to 8 "
                    "hexadecimal digits, or nothing where it is missing"
                )
