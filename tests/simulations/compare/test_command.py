from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from simulations.cli import app
from tests.simulations.compare.test_compare import a_run


def compare(*words: object) -> Result:
    return CliRunner().invoke(app, ["compare", *map(str, words)])


def said(result: Result) -> str:
    return " ".join(result.output.split())


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("a/rows.jsonl", "ends in .html"),
        ("notes", "ends in .html"),
        ("a/report.html", "is no comparison by fedveil"),
        ("empty.html", "is no comparison by fedveil"),
        ("folder.html", "is no file"),
    ],
)
def test_a_comparison_replaces_no_file_but_a_comparison(tmp_path: Path, name: str, why: str) -> None:
    folder = a_run(tmp_path / "a")
    (tmp_path / "empty.html").touch()
    (tmp_path / "folder.html").mkdir()
    (folder / "report.html").write_text("<!doctype html><title>fedveil report</title>")
    page = tmp_path / name
    before = page.read_bytes() if page.is_file() else None
    result = compare(folder, "--out", page)
    assert result.exit_code == 2
    assert why in said(result)
    assert (page.read_bytes() if page.is_file() else None) == before


def test_a_comparison_replaces_an_earlier_one(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    assert compare(a_run(tmp_path / "a"), "--out", page).exit_code == 0
    before = page.read_bytes()
    assert compare(a_run(tmp_path / "a"), a_run(tmp_path / "b", 1), "--out", page).exit_code == 0
    assert page.read_bytes() != before


def test_without_out_a_foreign_file_of_the_default_name_is_kept(tmp_path: Path) -> None:
    folder = a_run(tmp_path / "a")
    (folder / "comparison.html").write_text("mine")
    assert compare(folder).exit_code == 2
    assert (folder / "comparison.html").read_text() == "mine"
