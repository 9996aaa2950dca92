"""Canaries in training: an accuracy beside them is no cost of a defence, and each bound has its own gap."""

from __future__ import annotations

from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from defenses.neighbours import REPLACE_CLIENT, REPLACE_ONE
from simulations.console.terminal import Terminal
from simulations.report import write_report
from simulations.report.analysis.outcome import outcomes
from simulations.report.analysis.run import read_run
from simulations.report.analysis.shown import NO_COST
from simulations.runtime.findings import print_findings
from strategies.audit.threat_card import Strength
from strategies.federated.shown_epsilon import AUDIT, ShownEpsilon
from tests.simulations.report.report_run import PIPELINES, Page, demo_rows, row, write_run

AUDITED, FREE = PIPELINES[2], PIPELINES[3]


def audited_rows(neighbours: str, failed: bool = False) -> list[dict[str, Any]]:
    """A run in which canaries tested one of two claims."""
    shown = ShownEpsilon(
        8.0, 1e-5, 0.95, 0.72, 4.12, "all parameters", 100, 100, 80, "", 18.0, 19.0, neighbours=neighbours
    )
    of = {"status": "failed", "message": "no client reports an epsilon"} if failed else {AUDIT: shown.to_json()}
    value = None if failed else shown.plain
    rows = [one | ({"neighbours": neighbours} if one["metric"] == "epsilon" else {}) for one in demo_rows()]
    return [*rows, row(metric="epsilon-shown", defense=AUDITED, round=3, value=value, **of)]


@pytest.mark.parametrize("failed", [False, True])
@pytest.mark.parametrize(("neighbours", "kind"), [(REPLACE_ONE, "examples"), (REPLACE_CLIENT, "clients")])
def test_no_cost_of_a_defence_is_read_from_a_training_with_canaries(
    tmp_path: Path, neighbours: str, kind: str, failed: bool
) -> None:
    read = read_run(write_run(tmp_path, audited_rows(neighbours, failed)))
    lines = {line.defense: line for line in read.lines(read.studies[0])}
    one, other = lines[AUDITED], lines[FREE]
    assert (one.canaries, other.canaries, lines[""].canaries) == (kind, "", "")
    assert one.cost is None
    assert (one.change is None) == (kind == "clients")
    assert NO_COST in one.caveats
    assert other.cost == other.change is not None
    assert not other.cost_note
    assert NO_COST not in other.caveats


def test_page_and_terminal_say_so_beside_the_accuracy_and_each_gap_beside_its_bound(tmp_path: Path) -> None:
    folder = write_run(tmp_path, audited_rows(REPLACE_CLIENT))
    page = Page(Path(write_report(folder)).read_text(encoding="utf-8"))
    note = "canary clients in training"
    for section in ("glance", "summary"):
        (table,) = page.tables[section]
        noted = [line for line in table if any(note in cell for cell in line)]
        assert len(noted) == 1
    assert f"{note}: no measure of the defence's cost" in " ".join(page.sections["headline"].split())
    (found,) = (one for one in outcomes(read_run(folder).lines(read_run(folder).studies[0])) if one.defense == AUDITED)
    assert found.shown_epsilon[:2] == ("shown ≥ 0.72 (gap 7.28)", "≥ 4.12 if noise is Gaussian (gap 3.88)")
    out = StringIO()
    print_findings(Terminal(file=out, width=140, highlight=False), folder)
    text = out.getvalue()
    assert "with canaries" in text
    assert f"{AUDITED}: {NO_COST}" in " ".join(text.split())
    assert "proven" not in " ".join(page.sections["summary"].split())


def test_a_defence_without_the_argument_per_is_not_advised_to_set_it(tmp_path: Path) -> None:
    own = {PIPELINES[1]: "ClientDP(max_norm=1.0)", AUDITED: "GaussianNoise(std=0.1, per='update')"}
    rows = [
        one
        | {"defense": own.get(one["defense"], one["defense"])}
        | ({"card": one["card"] | {"defense_strength": Strength.ONE_STEP.value}} if one["defense"] in own else {})
        for one in demo_rows()
    ]
    read = read_run(write_run(tmp_path, rows))
    said = {line.defense: " ".join(line.caveats) for line in read.lines(read.studies[0])}
    without, with_it = own.values()
    assert said[without].count("compare training updates") == said[with_it].count("compare training updates") == 1
    assert "per=" not in said[without]
    assert "or choose per='step'" in said[with_it]
