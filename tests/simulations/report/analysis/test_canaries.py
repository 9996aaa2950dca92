from pathlib import Path
from typing import Any

import pytest

from defenses.neighbours import REPLACE_CLIENT, REPLACE_ONE
from simulations.report.analysis.budget import CLIENTS, EXAMPLES, NO_COST
from simulations.report.analysis.run import read_run
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
    for neighbours, kind in ((REPLACE_ONE, EXAMPLES), (REPLACE_CLIENT, CLIENTS)):
        for failed in (False, True):
            folder = write_run(tmp_path / f"{kind}{failed}", audited_rows(neighbours, failed))
            read = read_run(folder)
            lines = {one.defense: one for one in read.summaries[0].findings}
            one, other = lines[AUDITED], lines[FREE]
            assert [of.accuracy.canaries for of in (one, other, lines[""])] == [kind, "", ""]
            assert (one.accuracy.change is None, other.accuracy.change is None) == (kind == CLIENTS, False)
            assert (NO_COST in one.caveats, NO_COST in other.caveats, bool(other.accuracy.note)) == (True, False, False)
        assert one.budget.shown is None
        assert one.accuracy.note != ""
    folder = write_run(tmp_path / "shown", audited_rows(REPLACE_CLIENT))
    (found,) = (one for one in read_run(folder).summaries[0].findings if one.defense == AUDITED)
    assert found.budget.lines[-2:] == ("shown ≥ 0.72", "≥ 4.12 if noise is Gaussian")
    assert (found.budget.shown.gap, found.budget.shown.gap_gaussian) == pytest.approx((7.28, 3.88))
