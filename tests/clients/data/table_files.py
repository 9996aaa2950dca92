"""Small tables in the formats of the real ones."""

from pathlib import Path

import numpy as np

from clients.data.public_tables import COLUMNS, TEST, TRAIN


def census_line(age: int, job: str, *, rich: bool) -> str:
    """A person: age and class of worker vary, as does the column "sex" with the age; everything else is the same."""
    cells = ["0" if column.numeric else "x" for column in COLUMNS[:-1]]
    cells[0], cells[1], cells[12] = str(age), job, ("Female", "Male")[age % 2]
    return ", ".join([*cells, "50000+." if rich else "- 50000."])


def write_census(folder: Path, train: int = 200, test: int = 60) -> Path:
    """Files in which the class of worker alone says who is rich."""
    folder.mkdir(parents=True, exist_ok=True)
    draw = np.random.default_rng(0)
    for name, count in ((TRAIN, train), (TEST, test)):
        people = [(int(draw.integers(20, 60)), "abcd"[draw.integers(4)]) for _ in range(count)]
        lines = [census_line(age, job, rich=job in "ab") for age, job in people]
        (folder / name).write_text("\n".join(lines) + "\n")
    return folder


def criteo_line(label: str = "0", first: str = "1", category: str = "68fd1e64") -> str:
    """An advertisement whose first number and first category are given; the others are missing or all the same."""
    return "\t".join([label, first, *[""] * 12, category, *["0b153874"] * 24, ""])
