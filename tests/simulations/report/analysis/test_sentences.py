"""What the first screen says, and the rule by which it supports a defence or none."""

from typing import Any

import pytest

from simulations.report.analysis.finding import Finding, findings_of
from simulations.report.analysis.sentences import NO_CHOICE, notes, recommendation
from simulations.run_folder.rows import Row
from tests.simulations.report.analysis.test_verdict import attacked
from tests.simulations.report.report_run import row, scored, study_of

ADAPTED = {"D()": {"adaptive_attacks": ["A"]}, "E()": {"adaptive_attacks": ["A"]}}


def accuracies(**of: float) -> list[dict[str, Any]]:
    known = {"metric": "test-accuracy", "reference": "original", "n": 1000}
    return [row(defense=f"{name}()" if name != "none" else "", value=value, **known) for name, value in of.items()]


def summary(*attacks: list[Any], accuracy: dict[str, float] | None = None, known: Any = ADAPTED) -> list[Finding]:
    import json

    told = {"experiment": "demo", "scenario": "federated", "dataset": "mnist", "model": "LeNet"}
    rows = [json.loads(one.line) | told for of in attacks for one in of]
    return findings_of(study_of([*rows, *accuracies(**accuracy or {})], ["", "D()", "E()"]), known)


BROKEN, HIDDEN, ALSO = attacked(40, 40), attacked(0, defense="D()"), attacked(0, defense="E()")
COSTS = {"none": 0.9, "D": 0.88, "E": 0.6}


def test_a_defence_is_supported_that_hides_images_and_costs_least() -> None:
    assert recommendation(summary(BROKEN, HIDDEN, ALSO, accuracy=COSTS)).startswith("These measurements support D():")


def members(defense: str, low: float) -> list[Any]:
    return [scored(0.7, low, metric="membership-auc", reference="", n=200, ci_high=0.8, defense=defense)]


def test_a_recommendation_says_what_else_is_inferred_and_prefers_a_defence_under_which_nothing_is() -> None:
    of = BROKEN, HIDDEN, members("", 0.6)
    said = recommendation(summary(*of, members("D()", 0.6), accuracy=COSTS))
    assert said.endswith("This rests on images alone: attacks infer members under it.")
    assert recommendation(summary(*of, members("D()", 0.4), accuracy=COSTS)).endswith("Nor do attacks infer members.")
    assert recommendation(summary(*of, accuracy=COSTS)).endswith("alone: membership was not tested.")
    both = (*of, ALSO, members("D()", 0.6), members("E()", 0.4))
    assert "support E():" in recommendation(summary(*both, accuracy=COSTS | {"E": 0.85}))


@pytest.mark.parametrize(("epsilon", "supported"), [(0.5, True), (1.0, True), (8.0, False)])
def test_a_large_epsilon_stands_for_no_attack_that_knows_the_defence(epsilon: float, supported: bool) -> None:
    spent = [Row(metric="epsilon", defense="D()", value=epsilon, n=1)]
    said = recommendation(summary(BROKEN, HIDDEN, spent, accuracy={"none": 0.9, "D": 0.88}, known={}))
    assert said.startswith("These measurements support D()") == supported
    assert ("an epsilon above 1 bounds little" in said) != supported


@pytest.mark.parametrize(
    ("attacks", "accuracy", "known", "reason"),
    [
        ((BROKEN, attacked(40, 40, defense="D()")), COSTS, ADAPTED, "attacks still find images under D"),
        ((attacked(0), HIDDEN), COSTS, ADAPTED, "it is unknown what attacks find without one, either"),
        ((BROKEN, HIDDEN), {}, ADAPTED, "the cost in accuracy was not measured under D"),
        ((BROKEN, HIDDEN), {"none": 0.9, "D": 0.79}, ADAPTED, "accuracy may fall by more than 10 points under D"),
        ((BROKEN, HIDDEN), COSTS, {}, "no attack that knows the defence was tried under D"),
        ((attacked(40, 40, attack="B()"), HIDDEN), COSTS, ADAPTED, "it is unknown what attacks find under D"),
        (
            (attacked(4, 4), HIDDEN),
            COSTS,
            ADAPTED,
            "too few images or messages were attacked to tell the difference to no defence under D",
        ),
    ],
)
def test_no_choice_is_supported_and_the_reason_is_said(
    attacks: tuple[Any, ...], accuracy: dict[str, float], known: Any, reason: str
) -> None:
    of = {name: value for name, value in accuracy.items() if name != "E"}
    said = recommendation(summary(*attacks, accuracy=of, known=known))
    assert said.startswith(NO_CHOICE)
    assert reason in said


def test_there_is_nothing_to_choose_without_a_defence_or_without_none() -> None:
    assert recommendation(summary(BROKEN)) == ""


def test_a_caveat_of_several_defences_is_said_once() -> None:
    found = notes(summary(BROKEN, HIDDEN, ALSO, known={}), "no defence")
    assert found == ["D() and E(): untested against an adaptive attacker"]
