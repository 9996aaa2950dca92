from __future__ import annotations

import html
import json
import re
from pathlib import Path
from typing import Any

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


def damage(folder: Path, lines: int) -> int:
    """Replace the first lines of a run's rows by texts that are not JSON; returns the number of all lines."""
    rows = folder / "rows.jsonl"
    found = rows.read_text().splitlines()
    rows.write_text("".join(f"{line}\n" for line in ["{broken"] * lines + found[lines:]))
    return len(found)


def test_damaged_rows_are_counted_once_for_each_folder(tmp_path: Path) -> None:
    folders = [a_run(tmp_path / name, seed) for seed, name in enumerate("abc")]
    lines = damage(folders[0], 3)
    damage(folders[1], 1)
    result = compare(*folders, "--out", tmp_path / "page.html", "--quiet")
    assert result.exit_code == 0
    sentences = [
        f"{folders[0]}: 3 of {lines} lines of rows.jsonl are damaged and left out",
        f"{folders[1]}: 1 of {lines} lines of rows.jsonl is damaged and left out",
    ]
    assert result.stderr.splitlines() == [f"warning: {one}" for one in sentences]
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert [page.count(one) for one in sentences] == [1, 1]
    assert "is not JSON" not in page
    assert str(folders[2]) not in result.stderr


def test_a_report_warns_of_damaged_rows_and_is_kept_where_none_can_be_read(tmp_path: Path) -> None:
    folder = a_run(tmp_path / "a")
    lines = damage(folder, 2)
    made = CliRunner().invoke(app, ["report", str(folder)])
    assert made.exit_code == 0
    assert made.stderr == f"warning: {folder}: 2 of {lines} lines of rows.jsonl are damaged and left out\n"
    files = [folder / name for name in ("report.html", "attacks.html", "rows.csv")]
    before = [one.read_bytes() for one in files]
    damage(folder, lines)
    refused = CliRunner().invoke(app, ["report", str(folder)])
    assert refused.exit_code == 2
    assert f"{folder}: {lines} of {lines} lines of rows.jsonl are damaged" in refused.stderr
    assert [one.read_bytes() for one in files] == before


def test_a_comparison_ends_with_commands_for_more_seeds_and_more_images(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"probe-targets": 12, "scenario": "federated"}
    folders = [a_run(tmp_path / "a b", 0, **settings), a_run(tmp_path / "b", 2, **settings)]
    folders.append(a_run(tmp_path / "c", 0, **(settings | {"model": "lenet"})))
    assert compare(*folders, "--out", tmp_path / "page.html").exit_code == 0
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert text.count("<h2>What to do next</h2>") == 1
    end = html.unescape(text.split("What to do next</h2>")[1])
    commands = [one.split("\n") for one in re.findall(r"<pre[^>]*>(.*?)</pre>", end, re.DOTALL)]
    assert commands == [
        [
            "fedveil run -s rounds=3 -s probe-targets=12 --seeds 3..7 --out more-seeds-1",
            "fedveil run -s model=lenet -s rounds=3 -s probe-targets=12 --seeds 3..7 --out more-seeds-2",
            f"fedveil compare '{folders[0]}' {folders[1]} {folders[2]} more-seeds-1/seed-* more-seeds-2/seed-* "
            "--out comparison.html",
        ],
        [
            "fedveil run -s rounds=3 -s probe-targets=24 --seeds 0..4 --out more-images-1",
            "fedveil run -s model=lenet -s rounds=3 -s probe-targets=24 --seeds 0..4 --out more-images-2",
            "fedveil compare more-images-1/seed-* more-images-2/seed-* --out comparison.html",
        ],
    ]


def test_a_comparison_of_audited_apps_has_no_commands_of_runs(tmp_path: Path) -> None:
    folder = a_run(tmp_path / "a")
    config = json.loads((folder / "config.json").read_text())
    del config["config"]["output-dir"]
    (folder / "config.json").write_text(json.dumps(config))
    assert compare(folder, "--out", tmp_path / "page.html").exit_code == 0
    assert "What to do next" not in (tmp_path / "page.html").read_text(encoding="utf-8")
