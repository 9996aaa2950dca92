from html import unescape
from pathlib import Path
from typing import Any

import pytest

from defenses.neighbours import REPLACE_CLIENT, REPLACE_ONE
from simulations.report.analysis.budget import CLIENTS, EXAMPLES, NO_COST
from simulations.report.analysis.run import read_run
from simulations.report.page.page import build
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


FOUND = {"rdp": 8.0, "pld": 6.91, "add-or-remove": 3.4}
OF = {"noise-multiplier": 1.39, "clipping-norm": 1.0, "sample-rate": 0.25, "steps": 48.0}
DEFENSE = PIPELINES[2]
ACCOUNTS = (
    "RDP 8.00 (upper bound by Renyi divergences), PLD 6.91 (claimed; upper bound by privacy loss distributions), "
    "add-or-remove 3.40 (the same noise for one example more or less, as Opacus counts)"
)


def test_an_epsilon_stands_with_its_terms_its_neighbours_and_other_accounts(tmp_path: Path) -> None:
    told = {f"epsilon-by-{name}": value for name, value in (FOUND | {"made-up": 1.0}).items()}
    told |= {f"budget-{name}": value for name, value in OF.items()}
    rows = [row(metric=name, defense=DEFENSE, round=3, value=value) for name, value in told.items()]
    known = {"defense": DEFENSE, "round": 3}
    spent = [row(metric="epsilon", value=6.91, **known), row(metric="delta", value=1e-5, **known)]
    kept = [one for one in demo_rows() if one["defense"] in ("", DEFENSE) and one["metric"] not in ("epsilon", "delta")]
    run = write_run(tmp_path, [*kept, *rows, *spent])
    (found,) = (one["epsilon"] for one in read_run(run).to_json() if one["defense"] == DEFENSE)
    assert (found["by_accountant"], found["terms"]) == (FOUND, OF | {"delta": 1e-5})
    text = "noise multiplier 1.39, clipping norm 1, sample rate 0.25, 48 steps, delta 1e-5"
    for said in (found["text"].replace("\N{MINUS SIGN}", "-"), unescape(build(run)[0]).replace("\N{MINUS SIGN}", "-")):
        assert text in said
        assert ACCOUNTS in said
