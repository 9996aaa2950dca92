from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from defenses.neighbours import REPLACE_CLIENT, REPLACE_ONE
from simulations.console.terminal import Terminal
from simulations.report.analysis.outcome import outcomes
from simulations.report.analysis.run import read_run
from simulations.report.analysis.shown import NO_COST
from simulations.runtime.findings import print_findings
from strategies.federated.shown_epsilon import AUDIT, ShownEpsilon
from tests.simulations.report.report_run import PIPELINES, demo_rows, row, write_run

AUDITED, FREE = PIPELINES[2], PIPELINES[3]


def audited_rows(neighbours: str, failed: bool = False) -> list[dict[str, Any]]:
    numbers = (8.0, 1e-5, 0.95, 0.72, 4.12, "all parameters", 100, 100, 80, "", 18.0, 19.0)
    shown = ShownEpsilon(*numbers, neighbours=neighbours)
    of = {"status": "failed", "message": "no client reports an epsilon"} if failed else {AUDIT: shown.to_json()}
    value = None if failed else shown.plain
    rows = [one | ({"neighbours": neighbours} if one["metric"] == "epsilon" else {}) for one in demo_rows()]
    return [*rows, row(metric="epsilon-shown", defense=AUDITED, round=3, value=value, **of)]


def test_no_cost_of_a_defence_is_read_from_a_training_with_canaries(tmp_path: Path) -> None:
    for neighbours, kind in ((REPLACE_ONE, "examples"), (REPLACE_CLIENT, "clients")):
        for failed in (False, True):
            folder = write_run(tmp_path / f"{kind}{failed}", audited_rows(neighbours, failed))
            read = read_run(folder)
            lines = {line.defense: line for line in read.lines(read.studies[0])}
            one, other = lines[AUDITED], lines[FREE]
            assert (one.canaries, other.canaries, lines[""].canaries) == (kind, "", "")
            assert (one.change is None, other.change is None) == (kind == "clients", False)
            assert (NO_COST in one.caveats, NO_COST in other.caveats, bool(other.cost_note)) == (True, False, False)
        (found,) = (one for one in outcomes(list(lines.values())) if one.defense == AUDITED)
        assert found.epsilon.shown is None
        assert found.accuracy.note == one.cost_note != ""
    folder = write_run(tmp_path / "shown", audited_rows(REPLACE_CLIENT))
    (found,) = (one for one in outcomes(read_run(folder).lines(read_run(folder).studies[0])) if one.defense == AUDITED)
    assert found.epsilon.lines[-2:] == ("shown ≥ 0.72", "≥ 4.12 if noise is Gaussian")
    assert (found.epsilon.gap, found.epsilon.gap_gaussian) == pytest.approx((7.28, 3.88))
    out = StringIO()
    print_findings(Terminal(file=out, width=140, highlight=False), folder)
    said = " ".join(out.getvalue().split())
    assert "canary clients in training: no measure of the defence's cost" in said
    assert f"{AUDITED}: {NO_COST}" in said
