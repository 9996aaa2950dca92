from html import unescape
from pathlib import Path

from simulations.report.analysis.budget import by_accountant_text
from simulations.report.analysis.run import read_run
from simulations.report.page.page import build
from tests.simulations.report.report_run import PIPELINES, demo_rows, row, write_run

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
    assert by_accountant_text(FOUND, 6.91) == ACCOUNTS
    assert "claimed" not in by_accountant_text(FOUND, 5.0)
    assert by_accountant_text({}, 8.0) == ""
    spent = [
        row(metric="epsilon", defense=DEFENSE, round=3, value=6.91),
        row(metric="delta", defense=DEFENSE, round=3, value=1e-5),
    ]
    kept = [one for one in demo_rows() if one["defense"] in ("", DEFENSE) and one["metric"] not in ("epsilon", "delta")]
    run = write_run(tmp_path, [*kept, *rows, *spent])
    (found,) = (one["epsilon"] for one in read_run(run).to_json() if one["defense"] == DEFENSE)
    assert (found["by_accountant"], found["terms"]) == (FOUND, OF | {"delta": 1e-5})
    text = "noise multiplier 1.39, clipping norm 1, sample rate 0.25, 48 steps, delta 1e-5"
    for said in (
        found["text"].replace("\N{MINUS SIGN}", "-"),
        unescape(build(run)[0]).replace("\N{MINUS SIGN}", "-"),
    ):
        assert text in said
        assert ACCOUNTS in said
