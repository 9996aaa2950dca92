"""What stands over each chart is what its numbers say."""

from __future__ import annotations

from typing import Any

from simulations.report.analysis.line import Line
from simulations.report.analysis.summary import summarise
from simulations.report.drawing.looks import looks
from simulations.report.drawing.plots import epsilon, spent
from simulations.report.page.headings import (
    accuracy_finding,
    epsilon_finding,
    gains_finding,
    members_finding,
    plane_finding,
)
from tests.simulations.report.report_run import CONFIG, PIPELINES, demo_rows, member_rows, study_of

FACES = looks(PIPELINES)
MINUS = "\N{MINUS SIGN}"


def lines(rows: list[dict[str, Any]]) -> list[Line]:
    return summarise(study_of(rows), CONFIG["defenses"])


def test_headings_name_the_extremes_of_their_charts() -> None:
    """Under the mixer and DP-SGD(2.0) no image is recovered; the mixer costs 5 points, DP-SGD(2.0) 15."""
    rows = demo_rows()
    found = lines(rows)
    fewest = f"Fewest images recovered: 0 of 16, under Mixer, which changes accuracy by {MINUS}5.0 points."
    assert plane_finding(found, FACES) == fewest
    assert plane_finding(lines([one for one in rows if not one["defense"]]), FACES) == ""
    assert accuracy_finding(found, FACES) == "Test accuracy ends between 80.0 % (DPSGD(2.0)) and 95.0 % (No defence)."
    assert gains_finding([one for one in found if one.defense == PIPELINES[3]], FACES) == "No image was recovered."
    # Of an attack that does not work without a defence, nothing follows for the defences.
    for one in rows:
        if not one["defense"] and one["attack"] and one["metric"] == "psnr":
            one |= {"value": 9.0, "ci_low": 8.5, "ci_high": 9.5}
    assert plane_finding(lines(rows), FACES) == ""


def test_budgets_are_drawn_where_three_rounds_have_one() -> None:
    of = spent(study_of(demo_rows()))
    assert list(of) == PIPELINES[2:]
    ends = "Budget spent, ε: DPSGD(8.0) 8.00 after round 3, DPSGD(2.0) 2.00 after round 3."
    assert epsilon_finding(of, FACES) == ends
    (_, broad), (_, narrow) = epsilon(of, FACES)
    assert broad != narrow
    assert "DPSGD(8.0), round 2: ε = 5.33" in broad
    two = [one for one in demo_rows() if one["round"] != 2]
    assert (spent(study_of(two)), epsilon_finding({}, FACES), epsilon({}, FACES)) == ({}, "", [])


def test_members_are_shown_by_tests_whose_interval_lies_above_chance() -> None:
    rows = [*demo_rows(), *member_rows("", 0.7, (0.65, 0.75)), *member_rows(PIPELINES[1], 0.51, (0.45, 0.56))]
    for one in rows:
        one |= {"value": 0.01} if one["metric"] == "membership-tpr" else {}
    cells = [cell for cell in study_of(rows).cells if cell.mean("membership-auc") is not None]
    assert members_finding(cells, FACES) == "1 of 2 tests shows members; highest AUC 0.70 (No defence, round 1)."
    assert members_finding([], FACES) == ""
