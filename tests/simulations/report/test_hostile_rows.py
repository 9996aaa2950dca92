"""Rows that hold anything: ``fedveil report`` ends with a page, or with one clear error; never with a traceback."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from simulations.cli import app
from simulations.report import Row, read_rows, write_report
from simulations.report.studies.rows import to_csv
from tests.simulations.report.report_run import (
    CONFIG,
    Page,
    attack_rows,
    drawing_rows,
    member_rows,
    row,
    training_rows,
)

HOSTILE = {
    "inf": "Infinity", "-inf": "-Infinity", "nan": "NaN", "text-inf": '"inf"', "text-nan": '"nan"', "1e308": "1e308",
    "-1e308": "-1e308", "1e300": "1e300", "1e-320": "1e-320", "int-30": "1" + "0" * 30, "int-400": "9" * 400,
    "int-5000": "9" * 5000,
    "int-64": str(2**63), "negative": "-5", "true": "true", "false": "false", "null": "null", "list": "[1, [2, []]]",
    "dict": '{"a": {"b": [{}], "": null}}', "surrogate": '"\\ud800x\\udfff"', "empty": '""', "long": json.dumps("x" * 100_000),
    "formula": '"=1+1"', "breaks": '"a\\u2028b\\u0085c\\r\\nd"', "control": '"\\u0000\\u001b[31m\\uffff"', "zero": "0",
    "half": "0.5", "markup": '"<script>alert(1)</script>{{ 7 * 7 }}"',
}  # fmt: skip
"""Name -> a JSON text that stands where a field's value was."""
CARD = [
    "observation", "num_classes", "images", "batch", "local_steps", "chance", "members", "others", "clients", "rounds_observed",
    "model_accuracy", "attack_failures", "undefended", "upper_bound", "odd",
]  # fmt: skip
FIELDS = [
    *(
        "experiment",
        "scenario",
        "dataset",
        "model",
        "cut",
        "seed",
        "defense",
        "attack",
        "card",
        "round",
        "final",
        "metric",
    ),
    *(
        "reference",
        "value",
        "n",
        "status",
        "seconds",
        "ci_low",
        "ci_high",
        "worst",
        "failures",
        "message",
        "client",
        "roc",
        "odd",
    ),
    *(f"card.{name}" for name in CARD),
]
NUMBERS = (
    "value",
    "n",
    "round",
    "seed",
    "ci_low",
    "worst",
    "failures",
    "card.images",
    "card.members",
    "card.chance",
)
LARGE = ("inf", "1e308", "1e300", "int-64", "negative")


def rows() -> list[dict[str, Any]]:
    """Every kind of number, undefended and under one defence."""
    of = ("", "DPSGD(target_epsilon=8.0)")
    found = [one for text in of for one in (*training_rows(text, rounds=1), *attack_rows(text)) if one["round"] == 1]
    return [*found, *(one for text in of for one in member_rows(text, 0.7, (0.6, 0.8))), *drawing_rows("", 0.5)]


def line(of: Mapping[str, Any], field: str, text: str) -> str:
    """A row as JSON with another text in place of a field's value."""
    changed = {**of, "card": dict(of["card"])}
    inner, _, name = field.rpartition(".")
    (changed["card"] if inner else changed)[name] = "@hostile@"
    return json.dumps(changed).replace('"@hostile@"', text)


def report(folder: Path, lines: Iterable[str], config: str = json.dumps(CONFIG)) -> str:
    """The page, or the error, of ``fedveil report``."""
    folder.mkdir()
    (folder / "rows.jsonl").write_text("".join(f"{one}\n" for one in lines), encoding="utf-8")
    (folder / "config.json").write_text(config, encoding="utf-8")
    done = CliRunner().invoke(app, ["report", str(folder)])
    assert done.exit_code in (0, 2), f"{done.output}\n{done.exception!r}"
    if done.exit_code == 2:
        assert "Error" in done.output
        return done.output
    text = (folder / "report.html").read_text(encoding="utf-8")
    found = Page(text)
    assert found.open == []
    assert "configuration" in found.sections
    list(csv.reader(io.StringIO((folder / "rows.csv").read_text(encoding="utf-8"))))
    return text


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("offset", [0, 1])
def test_every_field_may_hold_anything(tmp_path: Path, name: str, offset: int) -> None:
    """Each row has it in another field, and the rows are longer than the fields: two folders for each."""
    found = [line(one, FIELDS[(at + 13 * offset) % len(FIELDS)], HOSTILE[name]) for at, one in enumerate(rows())]
    assert len(found) > len(FIELDS)
    assert "<script>alert" not in report(tmp_path / "run", found)


@pytest.mark.parametrize("name", LARGE)
@pytest.mark.parametrize("field", NUMBERS)
def test_a_number_may_be_anything_in_all_rows(tmp_path: Path, field: str, name: str) -> None:
    report(tmp_path / "run", [line(one, field, HOSTILE[name]) for one in rows()])


@pytest.mark.parametrize("name", ["1e300", "1e308", "inf", "surrogate", "control", "long"])
@pytest.mark.parametrize("field", ["value", "defense", "attack"])
def test_several_seeds_of_anything(tmp_path: Path, field: str, name: str) -> None:
    report(tmp_path / "run", [line({**one, "seed": seed}, field, HOSTILE[name]) for seed in range(3) for one in rows()])


@pytest.mark.parametrize("name", HOSTILE)
def test_the_configuration_may_hold_anything(tmp_path: Path, name: str) -> None:
    keys = [*CONFIG, "run", "odd"]
    report(tmp_path / "plain", [], "{" + ", ".join(f'"{key}": {HOSTILE[name]}' for key in keys) + "}")
    inner = f'{{"seconds": {HOSTILE[name]}, "round": {HOSTILE[name]}, "failed": {HOSTILE[name]}, "": {HOSTILE[name]}}}'
    report(tmp_path / "nested", [], "{" + ", ".join(f'"{key}": {inner}' for key in keys) + "}")


@pytest.mark.parametrize("missing", [*FIELDS[:23]])
def test_every_field_may_be_missing(tmp_path: Path, missing: str) -> None:
    report(tmp_path / "run", [json.dumps({k: v for k, v in one.items() if k != missing}) for one in rows()])


def test_keys_may_come_twice_and_the_last_counts(tmp_path: Path) -> None:
    twice = [json.dumps(one)[:-1] + f', "value": 0.5, "n": 7, "seed": {at}}}' for at, one in enumerate(rows())]
    report(tmp_path / "run", twice)
    assert {one.n for one in read_rows(tmp_path / "run" / "rows.jsonl")[0]} == {7}


@pytest.mark.parametrize("name", ["inf", "1e308", "1e300", "int-400", "negative"])
def test_a_share_that_is_none_is_a_failure_with_its_reason(tmp_path: Path, name: str) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(line(row(metric="retrieval", reference="original", attack="A()"), "value", HOSTILE[name]))
    (found,) = read_rows(path)[0]
    assert (found.value, found.status) == (None, "failed")
    assert "value is" in found.message


@pytest.mark.parametrize(
    ("field", "name"), [("round", "1e300"), ("n", "int-400"), ("n", "negative"), ("seed", "int-30")]
)
def test_a_row_without_a_place_is_left_out_with_a_note(tmp_path: Path, field: str, name: str) -> None:
    page = report(tmp_path / "run", [line(rows()[0], field, HOSTILE[name]), json.dumps(rows()[1])])
    assert "line 1 is not a row" in page


def test_what_can_be_measured_stays_a_number(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row(metric="psnr", value=v)) + "\n" for v in (math.inf, 3.4e38, -0.5, 1e-300)))
    assert [one.value for one in read_rows(path)[0]] == [math.inf, 3.4e38, -0.5, 1e-300]


# Files ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["report", "compare"])
def test_rows_that_are_a_folder_are_refused(tmp_path: Path, command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rows.jsonl").mkdir()
    done = CliRunner().invoke(app, [command, str(tmp_path)])
    assert done.exit_code == 2, done.output
    assert "rows.jsonl is no file" in " ".join(done.output.split())
    assert not (tmp_path / "report.html").exists()


@pytest.mark.parametrize("name", ["config.json", "pictures", "pictures/index.jsonl"])
def test_other_files_of_the_wrong_kind_cost_a_note(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "rows.jsonl").write_text("".join(json.dumps(one) + "\n" for one in rows()))
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).mkdir() if name != "pictures" else (folder / name).write_text("")
    assert Page(write_report(folder).read_text(encoding="utf-8")).open == []


def test_a_report_that_cannot_be_written_says_so(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text("")
    (tmp_path / "report.html").mkdir()
    done = CliRunner().invoke(app, ["report", str(tmp_path)])
    assert done.exit_code == 2
    assert "report.html" in done.output


# Spreadsheets ---------------------------------------------------------------------------------------------------------

FORMULAS = ["=1+1", "+1", "-1+1", "@SUM(A1)", "\t=1", "\r=1", "=cmd|' /C calc'!A0", "-0.5"]


@pytest.mark.parametrize("text", FORMULAS)
def test_no_text_is_a_formula_for_a_spreadsheet(text: str) -> None:
    one = Row.from_json(
        {"metric": text, "message": text, "value": -0.5, "ci_low": -1e-7, "card": {text: text}, text: text}
    )
    header, cells = csv.reader(io.StringIO(to_csv([one]), newline=""))
    for cell in (*header, *cells):
        assert not cell.startswith(("=", "+", "@", "\t", "\r")), "a spreadsheet would compute it"
        assert not cell.startswith("-") or float(cell) in (-0.5, -1e-7)
    assert cells[header.index("message")] == f"'{text}"
    assert cells[header.index("value")] == "-0.5", "a number stays one"


def test_lists_and_objects_in_cells_are_texts_too() -> None:
    one = Row.from_json({"metric": "m", "card": {"odd": ["=1"]}, "more": {"=1": 1}})
    header, cells = csv.reader(io.StringIO(to_csv([one]), newline=""))
    assert cells[header.index("card.odd")] == "['=1']"
    assert cells[header.index("more")] == "{'=1': 1}"


# Other readers of the same files --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", HOSTILE)
def test_a_comparison_ends_with_a_page_whatever_the_rows_hold(tmp_path: Path, name: str) -> None:
    for at, folder in enumerate(("a", "b")):
        found = [line(one, FIELDS[(place + 7 * at) % len(FIELDS)], HOSTILE[name]) for place, one in enumerate(rows())]
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "rows.jsonl").write_text("".join(f"{one}\n" for one in found), encoding="utf-8")
        config = f'{{"config": {{"seed": {at}, "odd": {HOSTILE[name]}}}, "pipelines": {HOSTILE[name]}}}'
        (tmp_path / folder / "config.json").write_text(config, encoding="utf-8")
    page = tmp_path / "page.html"
    done = CliRunner().invoke(app, ["compare", str(tmp_path / "a"), str(tmp_path / "b"), "--out", str(page)])
    assert done.exit_code in (0, 2), f"{done.output}\n{done.exception!r}"
    assert page.is_file() == (done.exit_code == 0)


@pytest.mark.parametrize("name", HOSTILE)
def test_the_index_of_pictures_may_hold_anything(tmp_path: Path, name: str) -> None:
    picture = {
        "defense": "", "attack": "A()", "round": 1, "final": False, "image": 0, "target": 0, "client": 0, "kind": "reconstruction",
        "observation": "probe", "psnr": 9.0, "file": "a.png", "rounds_observed": 2, "caption": "c", "experiment": "demo", "seed": 0,
    }  # fmt: skip
    lines = [json.dumps({**picture, key: "@hostile@"}).replace('"@hostile@"', HOSTILE[name]) for key in picture]
    folder = tmp_path / "run"
    (folder / "pictures").mkdir(parents=True)
    (folder / "rows.jsonl").write_text("".join(json.dumps(one) + "\n" for one in rows()[:3]))
    (folder / "pictures" / "index.jsonl").write_text("".join(f"{one}\n" for one in lines), encoding="utf-8")
    assert Page(write_report(folder).read_text(encoding="utf-8")).open == []
