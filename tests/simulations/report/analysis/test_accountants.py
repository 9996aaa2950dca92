from html import unescape
from pathlib import Path

from defenses.training.accounting import MEANING
from simulations.report.analysis.line import accountants_text, epsilon_by_accountant
from simulations.report.analysis.outcome import as_json
from simulations.report.page.page import build
from tests.simulations.report.report_run import PIPELINES, demo_rows, row, study_of, write_run

FOUND = {"rdp": 8.0, "prv": 6.91, "gdp": 6.92}
DEFENSE = PIPELINES[2]
TEXT = (
    "epsilon by accountant: RDP 8.00 (claimed; upper bound by Renyi divergences), PRV 6.91 (upper bound by privacy loss random "
    "variables), GDP 6.92 (approximation by a central limit, no bound)"
)


def test_every_accountant_is_told_with_what_is_claimed_and_what_is_no_bound(tmp_path: Path) -> None:
    told = FOUND | {"made-up": 1.0}
    rows = [row(metric=f"epsilon-by-{name}", defense=DEFENSE, round=3, value=value) for name, value in told.items()]
    assert epsilon_by_accountant(study_of(rows), DEFENSE) == FOUND
    assert epsilon_by_accountant(study_of(demo_rows()), DEFENSE) == {}
    assert accountants_text(FOUND, 8.0) == TEXT
    assert "PRV 6.91 (claimed; upper bound" in accountants_text(FOUND, 6.91)
    assert "claimed" not in accountants_text(FOUND, 5.0)
    assert accountants_text({}, 8.0) == ""
    assert [name for name, text in MEANING.items() if "bound" not in text or "no bound" in text] == ["exact", "gdp"]
    run = write_run(tmp_path, [one for one in [*demo_rows(), *rows] if one["defense"] in ("", DEFENSE)])
    found = {one["defense"]: one["epsilon_by_accountant"] for one in as_json(run) if one["first"]}
    assert found == {"": {}, DEFENSE: FOUND}
    assert unescape(build(run).report).count(TEXT) == 1
