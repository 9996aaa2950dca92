from collections.abc import Sequence
from typing import Any

from defenses.neighbours import REPLACE_CLIENT, REPLACE_ONE
from simulations.report.analysis.summary import summarise
from simulations.report.sections.epsilon_curve import EpsilonCurve, epsilon_curves
from tests.simulations.report.report_run import attack_rows, member_rows, row, study_of, training_rows

EXAMPLES = {f"DPSGD(target_epsilon={epsilon:.1f})": epsilon for epsilon in (2.0, 8.0, 32.0)}
CLIENTS = {f"ClientDP(target_epsilon={epsilon:.1f}, rounds=1)": epsilon for epsilon in (8.0, 2000.0, 30000.0)}
PIPELINES = ["", *EXAMPLES, *CLIENTS]
NEIGHBOURS = {"DPSGD": REPLACE_ONE, "ClientDP": REPLACE_CLIENT}


def rows_of(neighbours: dict[str, str] = NEIGHBOURS) -> list[dict[str, Any]]:
    found = [*training_rows("", rounds=1), *attack_rows("")]
    for at, (defense, epsilon) in enumerate((EXAMPLES | CLIENTS).items()):
        known = {"defense": defense, "round": 1}
        named = neighbours[defense.partition("(")[0]]
        found += [
            row(metric="test-accuracy", reference="original", value=0.3 + 0.1 * (at % 3), n=500, **known),
            row(metric="epsilon", value=epsilon, neighbours=named, **known),
            row(metric="delta", value=1e-5, neighbours=named, **known),
            *member_rows(defense, 0.7, (0.65, 0.75)),
        ]
    return found


def another(defense: str) -> list[dict[str, Any]]:
    rows = member_rows(defense, 0.6, (0.55, 0.65), attack="QuantileRegression()")
    return [one | {"value": 0.375, "ci_high": 0.4} if one["metric"] == "membership-tpr" else one for one in rows]


def curves_of(rows: Sequence[dict[str, Any]]) -> tuple[EpsilonCurve, ...]:
    study = study_of(rows, PIPELINES)
    return epsilon_curves(study, summarise(study, {}))


def test_claims_that_differ_in_neighbours_or_delta_have_curves_of_their_own_of_three_points_or_more() -> None:
    rows = rows_of()
    for one in rows:
        if one["metric"] == "epsilon" and "32" in one["defense"]:
            one["neighbours"] = "add-or-remove"
    assert [(one.kind, one.neighbours, len(one.lines), bool(one.chart)) for one in curves_of(rows)] == [
        ("DPSGD", REPLACE_ONE, 2, False), ("DPSGD", "add-or-remove", 1, False), ("ClientDP", REPLACE_CLIENT, 3, True),
    ]  # fmt: skip
    two = [one for one in rows_of() if "32" not in one["defense"] and "30000" not in one["defense"]]
    assert curves_of(two) == ()
    rows = rows_of()
    for one in rows:
        if one["metric"] == "delta" and "32" in one["defense"]:
            one["value"] = 1e-6
    found = [one for one in curves_of(rows) if one.kind == "DPSGD"]
    assert [(one.delta, len(one.lines)) for one in found] == [(1e-5, 2), (1e-6, 1)]
    assert found[0].why_no_chart == "No curve: 2 epsilons of this level, defence and δ, and a curve needs 3."


def test_members_found_are_of_the_attack_with_the_highest_rate() -> None:
    rows = [*rows_of(), *(one for defense in EXAMPLES for one in another(defense))]
    examples = next(one for one in curves_of(rows) if one.kind == "DPSGD")
    for line in examples.lines:
        assert (line.membership.attack, line.membership_rate.attack) == ("LossThreshold()", "QuantileRegression()")
    assert "members found 37.5 %" in examples.chart[0][1]
    assert "members found 12.5 %" not in examples.chart[0][1]
