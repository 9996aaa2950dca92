from typing import Any

from simulations.report.columns import Shown
from simulations.report.sections.attributes import inferred_attributes
from simulations.report.studies.intervals import wilson
from tests.simulations.report.report_run import row, study_of
from tests.simulations.report.shown import cells, tables

STATIC, RETRAINED = "AttributeInference(training='static')", "AttributeInference()"
NOISE, PRUNED = "GaussianNoise(std=0.1)", "Pruning(fraction=0.9)"
PIPELINES = ["", NOISE, PRUNED]
SHARES = {"": (0.9, 0.9), NOISE: (0.5, 0.8), PRUNED: (0.5, 0.55)}
N = 200


def inferred(defense: str, attack: str, share: float, n: int = N, **more: Any) -> dict[str, Any]:
    low, high = wilson(share, n)
    card = {"observation": "attributes of queries", "images": 1} | more
    card |= {"knows_defenses": False} if attack == STATIC else {}
    known = {"attack": attack, "defense": defense, "card": card, "cut": more.get("cut", ""), "n": n}
    return row(metric="attribute-accuracy", value=share, ci_low=low, ci_high=high, **known)


def every_row(n: int = N) -> list[dict[str, Any]]:
    found = [inferred(defense, STATIC, share, n) for defense, (share, _) in SHARES.items()]
    found += [inferred(defense, RETRAINED, share, n) for defense, (_, share) in SHARES.items()]
    return found + [inferred(defense, "majority", 0.5, n) | {"role": "null baseline"} for defense in PIPELINES]


def section(rows: list[dict[str, Any]]) -> list[dict[str, Shown]]:
    found = tables(inferred_attributes(study_of(rows, PIPELINES), ()))
    return cells(found[0]) if found else []


def test_every_adversary_stands_beside_the_most_frequent_value() -> None:
    told = {
        (one["Defence"].text, one["Learned"].text): (one["Accuracy, %"].text, one["Most frequent, %"].text)
        for one in section(every_row())
    }
    assert told["", "static"] == ("90.0", "50.0")
    assert told[NOISE, "static"] == ("50.0", "50.0")
    assert told[NOISE, "retrained"] == ("80.0", "50.0")
    assert {one["Status"].text for one in section(every_row(n=10))} == {"under-powered"}
    # Cuts have a section of their own.
    assert section([inferred("", STATIC, 0.9, cut="conv2")]) == []
    assert section([row(metric="test-accuracy", value=0.5)]) == []


def test_the_card_says_what_an_adversary_learned_from() -> None:
    for knows, expected in ((False, "static"), (True, "retrained"), (None, "retrained")):
        more = {} if knows is None else {"knows_defenses": knows}
        found = section([inferred(NOISE, "A()", 0.9, **more)])
        assert [one["Learned"].text for one in found] == [expected]
