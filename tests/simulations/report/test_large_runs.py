"""Pages of runs of many defences or seeds: drawings show the first in full, and tables all."""

from __future__ import annotations

from pathlib import Path

import pytest

from simulations.report.drawing.figures import MOST_NAMED
from simulations.report.drawing.plots import MOST_STRIPS
from tests.simulations.report import report_run
from tests.simulations.report.report_run import CONFIG, Page, build, demo_rows, words

MANY = 80


def strips(found: Page) -> int:
    labels = [known.get("aria-label") or "" for tag, known in found.tags if tag == "svg"]
    return sum(" recovered by " in label for label in labels)


@pytest.mark.long
def test_many_defences_are_all_in_the_table_and_the_first_are_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = build(tmp_path / "few", demo_rows())
    assert "more defence" not in few.text
    assert strips(few) == len(report_run.PIPELINES)
    names = ["", *(f"Mixer(window={at})" for at in range(1, MANY))]
    psnr = {name: {1: (9.0 + at / 50, 0.5, 9.9), 3: (9.4 + at / 50, 0.5, 10.3)} for at, name in enumerate(names)}
    monkeypatch.setattr(report_run, "PIPELINES", names)
    monkeypatch.setattr(report_run, "PSNR", psnr)
    monkeypatch.setattr(report_run, "ACCURACY", {name: 0.5 + at / 400 for at, name in enumerate(names)})
    found = build(tmp_path / "many", demo_rows(), config=CONFIG | {"pipelines": names})
    assert len(found.table("summary")) == MANY
    assert f"first {MOST_STRIPS} defences" in words(found.text)
    assert f"{MANY - MOST_NAMED} more defences: names in the tooltips and tables" in found.text
    assert strips(found) == MOST_STRIPS


@pytest.mark.long
def test_many_seeds_are_one_line_for_each_defence(tmp_path: Path) -> None:
    rows = demo_rows(range(60))
    for one in rows:
        one |= {"value": min(one["value"], 1.0)} if one["metric"] == "test-accuracy" else {}
    found = build(tmp_path, rows)
    assert len(found.table("summary")) == len(report_run.PIPELINES)
    assert "over 60 seeds" in found.sections["headline"]
