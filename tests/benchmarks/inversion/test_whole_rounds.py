"""The script that attacks whole rounds: which lines are taken up again, and which are shown together."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[3] / "benchmarks" / "inversion"))
import whole_rounds

CASE = "convnet:train:photos:1:2:1:0.01"


def run(out: Path, monkeypatch: pytest.MonkeyPatch, *changed: str) -> int:
    """The number of lines after a run with changed settings."""
    order = ["x", "--cases", CASE, "--images", "1", "--iterations", "1", "--out", str(out), *changed]
    monkeypatch.setattr(sys, "argv", order)
    whole_rounds.main()
    return len(out.read_text().splitlines())


def test_runs_with_other_settings_are_measured_and_shown_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    out = tmp_path / "lines.jsonl"
    assert run(out, monkeypatch) == 2
    assert run(out, monkeypatch) == 2
    assert run(out, monkeypatch, "--auxiliary") == 4
    assert run(out, monkeypatch, "--no-averages") == 6
    shown = whole_rounds.shown([json.loads(line) for line in out.read_text().splitlines()])
    for case in (CASE, f"{CASE}, no averages", f"{CASE}, training split"):
        assert shown.count(f"| {case} |") == 2


def test_lines_that_name_no_split_are_of_the_test_split(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "lines.jsonl"
    run(out, monkeypatch)
    old = [json.loads(line) for line in out.read_text().splitlines()]
    for line in old:
        del line["auxiliary"]
    out.write_text("".join(json.dumps(line) + "\n" for line in old))
    assert run(out, monkeypatch) == 2
    assert "training split" not in whole_rounds.shown(old)
