"""Curves over epsilon: one figure for each level and defence, and never one axis for two levels."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from defenses.neighbours import CLIENT_LEVEL, EXAMPLE_LEVEL, REPLACE_CLIENT, REPLACE_ONE
from simulations.report import Row, validate, write_report
from simulations.report.analysis.summary import summarise
from simulations.report.sections.epsilon_curve import EpsilonCurve, epsilon_curves
from simulations.report.studies.study import split
from strategies.audit.threat_card import Strength
from tests.simulations.report.report_run import CONFIG, Page, attack_rows, member_rows, row, training_rows, write_run

EXAMPLES = {f"DPSGD(target_epsilon={epsilon:.1f})": epsilon for epsilon in (2.0, 8.0, 32.0)}
CLIENTS = {f"ClientDP(target_epsilon={epsilon:.1f}, rounds=1)": epsilon for epsilon in (8.0, 2000.0, 30000.0)}
PIPELINES = ["", *EXAMPLES, *CLIENTS]


def rows_of(neighbours: dict[str, str]) -> list[dict[str, Any]]:
    """A run whose accuracy grows with epsilon; ``neighbours`` by the name of the defence."""
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


def curves_of(rows: Sequence[dict[str, Any]]) -> tuple[EpsilonCurve, ...]:
    study = split(validate([Row.from_json(one) for one in rows]), PIPELINES)[0]
    return epsilon_curves(study, summarise(study, {}))


def test_each_level_has_a_figure_of_its_own_in_order_of_epsilon() -> None:
    examples, clients = curves_of(rows_of({"DPSGD": REPLACE_ONE, "ClientDP": REPLACE_CLIENT}))
    assert (examples.kind, examples.level) == ("DPSGD", EXAMPLE_LEVEL)
    assert (clients.kind, clients.level) == ("ClientDP", CLIENT_LEVEL)
    assert [line.epsilon for line in clients.lines] == [8.0, 2000.0, 30000.0]
    for one, other in ((examples, CLIENT_LEVEL), (clients, EXAMPLE_LEVEL)):
        assert [name for name, _ in one.chart] == ["broad", "narrow"]
        for _, chart in one.chart:
            assert f"{one.level} ε of {one.kind}" in chart
            assert other not in chart
    _, broad = clients.chart[0]
    assert "ClientDP, client-level ε = 2000.00: accuracy 40.0 %" in broad
    assert "members found 12.5 %" in broad


def test_one_defence_with_two_kinds_of_neighbours_has_two_axes() -> None:
    rows = rows_of({"DPSGD": REPLACE_ONE, "ClientDP": REPLACE_CLIENT})
    for one in rows:
        if one["metric"] == "epsilon" and "32" in one["defense"]:
            one["neighbours"] = "add-or-remove"
    found = curves_of(rows)
    assert [(one.kind, one.neighbours, len(one.lines), bool(one.chart)) for one in found] == [
        ("DPSGD", REPLACE_ONE, 2, False),
        ("DPSGD", "add-or-remove", 1, False),
        ("ClientDP", REPLACE_CLIENT, 3, True),
    ]


def test_two_points_are_no_curve() -> None:
    rows = [
        one
        for one in rows_of({"DPSGD": REPLACE_ONE, "ClientDP": REPLACE_CLIENT})
        if "32" not in one["defense"] and "30000" not in one["defense"]
    ]
    assert curves_of(rows) == ()


def test_claims_of_two_deltas_are_two_curves_and_too_few_epsilons_none() -> None:
    rows = rows_of({"DPSGD": REPLACE_ONE, "ClientDP": REPLACE_CLIENT})
    for one in rows:
        if one["metric"] == "delta" and "32" in one["defense"]:
            one["value"] = 1e-6
    found = [one for one in curves_of(rows) if one.kind == "DPSGD"]
    assert [(one.delta, len(one.lines)) for one in found] == [(1e-5, 2), (1e-6, 1)]
    assert found[0].why_no_chart == "No curve: 2 epsilons of this level, defence and δ, and a curve needs 3."


def test_no_defence_is_a_line_across_with_its_name() -> None:
    rows = rows_of({"DPSGD": REPLACE_ONE, "ClientDP": REPLACE_CLIENT})
    name = "no defence, accuracy"
    assert all(name in one.chart[0][1] for one in curves_of(rows))
    assert not any(name in one.chart[0][1] for one in curves_of([one for one in rows if one["defense"]]))


def test_members_found_are_of_the_attack_with_the_highest_rate() -> None:
    rows = rows_of({"DPSGD": REPLACE_ONE, "ClientDP": REPLACE_CLIENT})
    for defense in EXAMPLES:
        second = member_rows(defense, 0.6, (0.55, 0.65), attack="QuantileRegression()")
        rows += [one | {"value": 0.375, "ci_high": 0.4} if one["metric"] == "membership-tpr" else one for one in second]
    examples = next(one for one in curves_of(rows) if one.kind == "DPSGD")
    for line in examples.lines:
        assert line.membership is not None
        assert line.membership_rate is not None
        assert (line.membership.attack, line.membership_rate.attack) == ("LossThreshold()", "QuantileRegression()")
    assert "members found 37.5 %" in examples.chart[0][1]
    assert "members found 12.5 %" not in examples.chart[0][1]


def test_the_page_names_the_attack_of_a_rate_and_what_probes_spend(tmp_path: Path) -> None:
    rows = rows_of({"DPSGD": REPLACE_ONE, "ClientDP": REPLACE_CLIENT})
    strongest = next(iter(EXAMPLES))
    second = member_rows(strongest, 0.6, (0.55, 0.65), attack="QuantileRegression()")
    rows += [one | {"value": 0.375, "ci_high": 0.4} if one["metric"] == "membership-tpr" else one for one in second]
    rows.append(row(metric="epsilon-with-probes", value=3.5, defense=strongest, neighbours=REPLACE_ONE))
    once = [one for one in attack_rows("") if one["round"] == 1]
    rows += [
        one | {"defense": strongest, "card": one["card"] | {"defense_strength": Strength.ONE_STEP.value}}
        for one in once
    ]
    written = write_report(write_run(tmp_path / "run", rows, CONFIG | {"pipelines": PIPELINES, "defenses": {}}))
    page = Page(Path(written).read_text(encoding="utf-8"))
    first, second_table = page.tables["epsilon_curve"]
    named = dict(zip((cell[0] for cell in first[0]), first[2], strict=True))
    assert named["with probes"] == ["3.50"]
    assert named["Members found"][0] == "37.5 % †"  # no undefended run of that attack
    assert any("by QuantileRegression()" in text.replace("\u200b", "") for text in named["Members found"])
    assert "with probes" not in [cell[0] for cell in second_table[0]]
    text = " ".join(page.sections["epsilon_curve"].split())
    assert "with probes is the ε of training and of these probes together" in text
    assert text.count("not the strength of the accuracy beside it") == 1
    assert "37.5 %" in str(page.tables["summary"])


def test_the_page_has_the_curves_with_a_table_beside_each(tmp_path: Path) -> None:
    rows = rows_of({"DPSGD": REPLACE_ONE, "ClientDP": REPLACE_CLIENT})
    written = write_report(write_run(tmp_path / "run", rows, CONFIG | {"pipelines": PIPELINES, "defenses": {}}))
    page = Page(Path(written).read_text(encoding="utf-8"))
    first, second = page.tables["epsilon_curve"]
    assert first[1][1] == ["none"]
    assert [one[1] for one in first[2:]] == [["2.00", EXAMPLE_LEVEL], ["8.00", EXAMPLE_LEVEL], ["32.00", EXAMPLE_LEVEL]]
    assert [one[1][1] for one in second[2:]] == [CLIENT_LEVEL] * 3
    assert [one[0] for one in first[0]] == ["Defence", "ε claimed", "Accuracy", "Images recovered", "Members found"]
    assert "no axis holds both" in " ".join(page.sections["epsilon_curve"].split())
