"""Criteo's display advertising data: for each advertisement 13 whole numbers, 26 hashed categories, and whether it was clicked."""

from __future__ import annotations

import re
from pathlib import Path

from clients.data.images import DataError, Source
from clients.data.tables import Column, check_texts, labels_of, read_table, split_lines, table_source

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


def criteo(path: Path, fields: str = "categorical", limits: tuple[int, int] = (0, 0)) -> Source:
    """The labelled file of Kaggle's contest (``train.txt``): tab-separated, missing values empty.

    The first nine tenths train, in the order of the file, which is that of time; the rest tests. The shuffling paper names
    another publication of the same columns, the terabyte click logs. Of ``FIELDS``, "categorical" is the shuffling paper's 26
    fields, "all" puts the 13 numbers in buckets before. Of both parts the first ``limits`` lines alone are read (0: all): memory
    grows with these, not with the file.

    Source: Criteo Labs, Kaggle Display Advertising Challenge, 2014.
    """
    if fields not in FIELDS:
        raise DataError(f"criteo:{fields}; allowed: {' or '.join(f'criteo:{name}' for name in FIELDS)}")
    used = {column.name for column in FIELDS[fields]}
    columns = tuple(
        Column(c.name, c.numeric, c.name in used, c.name in used or c is LABEL) for c in (LABEL, *NUMBERS, *CATEGORIES)
    )
    parts = [read_table(path, columns, "\t", lines) for lines in split_lines(path, TEST_SHARE, limits)]
    for part in parts:
        for at, column in enumerate(CATEGORIES, 1 + len(NUMBERS)):
            check_texts(part, at, column, lambda text: not text or _HASH.match(text), "up to 8 hexadecimal digits")
    labels = [labels_of(part, 0, ["1"], ["0"]) for part in parts]
    return table_source(parts, columns, labels, ("no click", "click"), LEAST)
