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
    Row, **dict.fromkeys(("metric", "experiment", "defense", "attack", "message"), texts),
    **dict.fromkeys(("value", "ci_low", "worst"), numbers), seed=st.integers(-9, 9), round=st.integers(0, 99),
    card=st.builds(ThreatCard.from_json, st.dictionaries(names, values, max_size=3)),
    status=st.sampled_from(["ok", "failed", "not-validated"]), client=st.none() | st.integers(0, 9),
    extra=st.dictionaries(st.just("unit"), texts),
)  # fmt: skip


@given(rows)
def test_a_row_survives_strict_json(row: Row) -> None:
    def refuse(constant: str) -> float:
        raise AssertionError(f"{constant} is not JSON")

    assert Row.from_json(json.loads(row.line, parse_constant=refuse)) == row


def test_a_value_that_is_no_number_is_a_failure_not_a_gap() -> None:
    for value in ("NaN", '"nan"', '"n/a"'):
        row = Row.from_json(json.loads(f'{{"metric": "psnr", "value": {value}}}'))
        assert (row.value, row.status, "not a number" in row.message) == (None, "failed", True)
    assert Row.from_json({"metric": "epsilon", "value": None}).status == "ok"
    assert Row.from_json(json.loads('{"metric": "psnr", "value": Infinity}')).value == math.inf
    for line in ({}, {"metric": 3}, [1], "psnr", {"metric": "psnr", "round": "late"}):
        with pytest.raises(ValueError, match=r"metric|round"):
            Row.from_json(line)


def test_lines_that_are_no_rows_or_repeat_one_are_left_out_with_a_note(tmp_path: Path) -> None:
    first, second = (Row(metric="psnr", value=value).line for value in (1.0, 2.0))
    path = tmp_path / "rows.jsonl"
    assert read_rows(path) == ([], ["rows.jsonl is missing"])
    for lines, values, told in (
        ((first, first[:-7]), [1.0], ["the last line is cut off and was left out"]),
        (("{", '{"value": 1}', "", first, ""), [1.0], ["line 1 is not JSON", "line 2 is not a row"]),
        ((first, second, first), [1.0, 2.0], ["1 rows repeat another row in every field and were left out"]),
    ):
        path.write_text("\n".join(lines), encoding="utf-8")
        found, notes = read_rows(path)
        assert [row.value for row in found] == values
        assert [note.split(":")[1].strip() for note in notes] == told
    path.write_bytes(b'{"metric": "psnr", "message": "\xff"}\n')
    assert read_rows(path)[0][0].message == "\N{REPLACEMENT CHARACTER}"


@given(st.lists(rows, max_size=4))
def test_the_csv_holds_every_number(found: list[Row]) -> None:
    table = list(csv.DictReader(io.StringIO(to_csv(found), newline="")))

    def shown(value: object) -> str:
        told = "" if value is None else str(value)
        return f"'{told}" if told[:1] in set("=+-@\t\r\n") and not isinstance(value, int | float) else told

    for line, row in zip(table, found, strict=True):
        assert line["metric"] == shown(row.metric)
        assert line["value"] == ("" if row.value is None else str(row.value))
        for key, value in row.card.to_json().items():
            assert line[f"card.{key}"] == shown(value)
