from __future__ import annotations

import csv
import io
import json
import math
from dataclasses import fields
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulations.report import Row, read_rows
from simulations.report.studies.rows import to_csv
from strategies.audit.threat_card import ThreatCard

texts = st.text(max_size=8)
numbers = st.none() | st.floats(-1e100, 1e100) | st.sampled_from([math.inf, -math.inf])
names = texts | st.sampled_from([field.name for field in fields(ThreatCard) if field.name != "more"])
values = st.none() | st.booleans() | st.integers() | texts | st.lists(texts)
rows = st.builds(
    Row,
    metric=texts,
    experiment=texts,
    defense=texts,
    attack=texts,
    seed=st.integers(-9, 9),
    round=st.integers(0, 99),
    card=st.builds(ThreatCard.from_json, st.dictionaries(names, values, max_size=3)),
    value=numbers,
    ci_low=numbers,
    worst=numbers,
    status=st.sampled_from(["ok", "failed", "not-validated"]),
    client=st.none() | st.integers(0, 9),
    message=texts,
    extra=st.dictionaries(st.just("unit"), texts),
)


def write(path: Path, *lines: str) -> Path:
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


@given(rows)
def test_a_row_survives_strict_json(row: Row) -> None:
    def refuse(constant: str) -> float:
        raise AssertionError(f"{constant} is not JSON")

    assert Row.from_json(json.loads(row.to_json(), parse_constant=refuse)) == row


@pytest.mark.parametrize("value", ["NaN", '"nan"', '"n/a"'])
def test_a_value_that_is_no_number_is_a_failure_not_a_gap(value: str) -> None:
    row = Row.from_json(json.loads(f'{{"metric": "psnr", "value": {value}}}'))
    assert (row.value, row.status) == (None, "failed")
    assert "not a number" in row.message


def test_a_null_value_stays_a_gap_and_infinity_a_number() -> None:
    assert Row.from_json({"metric": "epsilon", "value": None}).status == "ok"
    assert Row.from_json(json.loads('{"metric": "psnr", "value": Infinity}')).value == math.inf


@pytest.mark.parametrize("line", [{}, {"metric": 3}, [1], "psnr", {"metric": "psnr", "round": "late"}])
def test_what_is_not_a_row_is_refused(line: object) -> None:
    with pytest.raises(ValueError, match=r"metric|whole number"):
        Row.from_json(line)  # type: ignore[arg-type]


def test_a_cut_off_last_line_is_left_out_with_a_note(tmp_path: Path) -> None:
    whole = Row(metric="psnr", value=1.0).to_json()
    found, notes = read_rows(write(tmp_path / "rows.jsonl", whole, whole[:-7]))
    assert [row.value for row in found] == [1.0]
    assert notes == ["rows.jsonl: the last line is cut off and was left out"]


def test_bad_lines_in_the_middle_are_named_by_number(tmp_path: Path) -> None:
    good = Row(metric="psnr", value=1.0).to_json()
    found, notes = read_rows(write(tmp_path / "rows.jsonl", "{", '{"value": 1}', "", good, ""))
    assert len(found) == 1
    assert [note.split(":")[1].strip() for note in notes] == ["line 1 is not JSON", "line 2 is not a row"]


def test_equal_rows_count_once_and_rows_that_differ_are_all_kept(tmp_path: Path) -> None:
    first, second = (Row(metric="psnr", value=value).to_json() for value in (1.0, 2.0))
    found, notes = read_rows(write(tmp_path / "rows.jsonl", first, second, first))
    assert [row.value for row in found] == [1.0, 2.0]
    assert notes == ["rows.jsonl: 1 rows repeat another row in every field and were left out"]


def test_damaged_bytes_and_a_missing_file_do_not_stop_reading(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    assert read_rows(path) == ([], ["rows.jsonl is missing"])
    path.write_bytes(b'{"metric": "psnr", "message": "\xff"}\n')
    assert read_rows(path)[0][0].message == "\N{REPLACEMENT CHARACTER}"


@given(st.lists(rows, max_size=4))
def test_the_csv_holds_every_number(found: list[Row]) -> None:
    table = list(csv.DictReader(io.StringIO(to_csv(found), newline="")))

    def shown(value: object) -> str:
        """A number as it is; a text that begins like a formula behind an apostrophe."""
        told = "" if value is None else str(value)
        return f"'{told}" if told[:1] in set("=+-@\t\r\n") and not isinstance(value, int | float) else told

    for line, row in zip(table, found, strict=True):
        assert line["metric"] == shown(row.metric)
        assert line["value"] == ("" if row.value is None else str(row.value))
        for key, value in row.card.to_json().items():
            assert line[f"card.{key}"] == shown(value)
