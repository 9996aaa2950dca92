from pathlib import Path

import pytest

from simulations.report.drawing.figures import MOST_NAMED
from simulations.report.drawing.plots import MOST_STRIPS
from tests.simulations.report import report_run
from tests.simulations.report.report_run import CONFIG, PIPELINES, Page, build, demo_rows, words

pytestmark = pytest.mark.long


def strips(found: Page) -> int:
    labels = [known.get("aria-label") or "" for tag, known in found.tags if tag == "svg"]
    return sum(" recovered by " in label for label in labels)


def test_many_defences_are_all_in_the_table_and_the_first_are_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert strips(build(tmp_path / "few")) == len(PIPELINES)
    names = ["", *(f"Mixer(window={at})" for at in range(1, 80))]
    psnr = {name: {1: (9.0 + at / 50, 0.5, 9.9), 3: (9.4 + at / 50, 0.5, 10.3)} for at, name in enumerate(names)}
    monkeypatch.setattr(report_run, "PIPELINES", names)
    monkeypatch.setattr(report_run, "PSNR", psnr)
    monkeypatch.setattr(report_run, "ACCURACY", {name: 0.5 + at / 400 for at, name in enumerate(names)})
    found = build(tmp_path / "many", demo_rows(), config=CONFIG | {"pipelines": names})
    assert (len(found.table("summary")), strips(found)) == (80, MOST_STRIPS)
    assert f"first {MOST_STRIPS} defences" in words(found.text)
    assert f"{80 - MOST_NAMED} more defences: names in the tooltips and tables" in found.text
