"""Epsilon by accountant: from the rows of a run to a line's words, the page, the terminal and programs."""

from __future__ import annotations

from html import unescape
from io import StringIO
from pathlib import Path

from defenses.training.accounting import MEANING
from simulations.console.terminal import Terminal
from simulations.report.analysis.accountants import accountants_text, epsilon_by_accountant
from simulations.report.analysis.outcome import as_json
from simulations.report.page.page import build
from simulations.report.studies.study import Study
from simulations.run_folder.rows import Row
from simulations.runtime.findings import print_findings
from tests.simulations.report.report_run import demo_rows, row, write_run

FOUND = {"rdp": 8.0, "prv": 6.91, "gdp": 6.92}
DEFENSE = "DPSGD(target_epsilon=8.0)"
TEXT = (
    "epsilon by accountant: RDP 8.00 (claimed; upper bound by Renyi divergences), PRV 6.91 (upper bound by privacy loss random "
    "variables), GDP 6.92 (approximation by a central limit, no bound)"
)


def study_of(found: dict[str, float]) -> Study:
    rows = [Row(metric=f"epsilon-by-{name}", defense="DP", round=3, value=value) for name, value in found.items()]
    return Study(("e", "federated", "d", "m", ""), tuple(rows), ("", "DP"))


def test_every_accountant_is_read_and_no_other_number() -> None:
    assert epsilon_by_accountant(study_of(FOUND | {"made-up": 1.0}), "DP") == FOUND
    assert epsilon_by_accountant(study_of({}), "DP") == {}


def test_the_words_say_which_is_claimed_and_which_is_no_bound() -> None:
    assert accountants_text(FOUND, 8.0) == TEXT
    assert "PRV 6.91 (claimed; upper bound" in accountants_text(FOUND, 6.91)
    assert "claimed" not in accountants_text(FOUND, 5.0)
    assert accountants_text({}, 8.0) == ""
    assert [name for name, text in MEANING.items() if "bound" not in text or "no bound" in text] == ["exact", "gdp"]


def test_page_programs_and_terminal_have_them(tmp_path: Path) -> None:
    rows = [row(metric=f"epsilon-by-{name}", defense=DEFENSE, round=3, value=value) for name, value in FOUND.items()]
    run = write_run(tmp_path, [*demo_rows(), *rows])
    of = [one for one in as_json(run) if one["defense"] == DEFENSE and one["first"]]
    assert [one["epsilon_by_accountant"] for one in of] == [FOUND]
    assert all(not one["epsilon_by_accountant"] for one in as_json(run) if one["defense"] != DEFENSE)
    assert unescape(build(run).report).count(TEXT) == 1
    out = StringIO()
    print_findings(Terminal(file=out, width=400, highlight=False), run)
    assert out.getvalue().count(f"{DEFENSE}: {TEXT}") == 1
