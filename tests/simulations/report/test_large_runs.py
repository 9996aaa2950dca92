"""Runs of many defences or seeds have their page in seconds: drawings show the first in full, and nothing grows with the square."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from simulations.report import write_report
from simulations.report.drawing.figures import MOST_NAMED
from simulations.report.drawing.plots import MOST_STRIPS
from tests.simulations.report import report_run
from tests.simulations.report.report_run import CONFIG, Page, demo_rows, write_run

MANY = 80
SECONDS = 40.0
"""Of this process alone, whatever else the machine does: before names and strips were bounded the page took more than ten times as
long."""


@pytest.fixture
def many_defenses(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    names = ["", *(f"Mixer(window={at})" for at in range(1, MANY))]
    psnr = {name: {1: (9.0 + at / 50, 0.5, 9.9), 3: (9.4 + at / 50, 0.5, 10.3)} for at, name in enumerate(names)}
    monkeypatch.setattr(report_run, "PIPELINES", names)
    monkeypatch.setattr(report_run, "PSNR", psnr)
    monkeypatch.setattr(report_run, "ACCURACY", {name: 0.5 + at / 400 for at, name in enumerate(names)})
    return names


@pytest.mark.long
def test_many_defences_have_their_page_soon(tmp_path: Path, many_defenses: list[str]) -> None:
    directory = write_run(tmp_path, rows=demo_rows(), config=CONFIG | {"pipelines": many_defenses})
    begin = time.process_time()
    source = write_report(directory).read_text(encoding="utf-8")
    assert time.process_time() - begin < SECONDS
    found = Page(source)
    assert len(found.table("summary")) == MANY, "every defence is in the table"
    assert f"first {MOST_STRIPS} defences" in " ".join(found.text.split())
    assert f"{MANY - MOST_NAMED} more defences: names in the tooltips and tables" in found.text
    strips = [
        known for tag, known in found.tags if tag == "svg" and " recovered by " in (known.get("aria-label") or "")
    ]
    assert len(strips) == MOST_STRIPS


@pytest.mark.long
def test_many_seeds_have_their_page_soon(tmp_path: Path) -> None:
    rows = [
        {**one, "value": min(one["value"], 1.0)} if one["metric"] == "test-accuracy" else one
        for one in demo_rows(range(60))
    ]
    directory = write_run(tmp_path, rows=rows)
    begin = time.process_time()
    found = Page(write_report(directory).read_text(encoding="utf-8"))
    assert time.process_time() - begin < SECONDS
    assert len(found.table("summary")) == len(report_run.PIPELINES)
    assert "over 60 seeds" in found.sections["headline"]


def test_few_defences_are_drawn_in_full(tmp_path: Path) -> None:
    found = Page(write_report(write_run(tmp_path)).read_text(encoding="utf-8"))
    assert "more defence" not in found.text
    strips = [
        known for tag, known in found.tags if tag == "svg" and " recovered by " in (known.get("aria-label") or "")
    ]
    assert len(strips) == len(report_run.PIPELINES)
