"""The section on a sensitive attribute: who read more than the most frequent value, and what each adversary learned from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from simulations.report.sections.attributes import SensitiveAttribute, inferred_attributes
from simulations.report.studies.score import wilson
from tests.simulations.report.report_run import PIPELINES as DEFENSES
from tests.simulations.report.report_run import attack_rows, build, row, study_of

STATIC, RETRAINED = "PropertyInference(training='static')", "PropertyInference()"
NOISE, PRUNED = "GaussianNoise(std=0.1)", "Pruning(fraction=0.9)"
PIPELINES = ["", NOISE, PRUNED]
SHARES = {
    "": {STATIC: 0.9, RETRAINED: 0.9},
    NOISE: {STATIC: 0.5, RETRAINED: 0.8},
    PRUNED: {STATIC: 0.5, RETRAINED: 0.55},
}
N = 200


def inferred(defense: str, attack: str, share: float, n: int = N, **more: Any) -> dict[str, Any]:
    low, high = wilson(share, n)
    card = {"observation": "attributes of one-step probes", "images": 1} | more
    card |= {"knows_defenses": False} if attack == STATIC else {}
    known = {"attack": attack, "defense": defense, "card": card, "cut": more.get("cut", ""), "n": n}
    return row(metric="attribute-accuracy", value=share, ci_low=low, ci_high=high, **known)


def every_row(n: int = N) -> list[dict[str, Any]]:
    found = [inferred(defense, attack, share, n) for defense, of in SHARES.items() for attack, share in of.items()]
    return found + [inferred(defense, "majority", 0.5, n) | {"role": "null baseline"} for defense in PIPELINES]


def section(rows: list[dict[str, Any]]) -> SensitiveAttribute | None:
    return inferred_attributes(study_of(rows, PIPELINES), ())


def test_who_reads_more_than_the_most_frequent_value_is_counted_by_intervals() -> None:
    found = section(every_row())
    assert found is not None
    assert (found.retrained, found.reading) == (2, 1)
    told = {(one.cell.defense, one.kind): (one.accuracy.mean, one.null, one.reads) for one in found.found}
    assert told["", "static"] == (0.9, 0.5, True)
    assert told[NOISE, "static"] == (0.5, 0.5, False)
    assert told[NOISE, "retrained"] == (0.8, 0.5, True)
    # 110 of 200: the interval reaches down to 48 %.
    assert told[PRUNED, "retrained"] == (0.55, 0.5, False)
    few = section(every_row(n=10))
    assert few is not None
    assert {one.cell.status for one in few.found} == {"under-powered"}
    assert (few.retrained, few.reading) == (0, 0)
    # Cuts have a section of their own.
    assert section([inferred("", STATIC, 0.9, cut="conv2")]) is None
    assert section([row(metric="test-accuracy", value=0.5)]) is None


def test_the_card_says_what_an_adversary_learned_from() -> None:
    for more, expected in (
        ({"knows_defenses": False}, "static"),
        ({"knows_defenses": True}, "retrained"),
        ({}, "retrained"),
    ):
        found = section([inferred(NOISE, "A()", 0.9, **more)])
        assert found is not None
        assert [one.kind for one in found.found] == [expected]


def test_beside_images_an_attribute_has_a_line_of_its_own_and_nothing_is_said_of_probes(tmp_path: Path) -> None:
    rows = [one for defense in DEFENSES[:2] for one in attack_rows(defense)]
    rows += [inferred(defense, RETRAINED, 0.8) for defense in DEFENSES[:2]]
    rows += [inferred(defense, "majority", 0.5) | {"role": "null baseline"} for defense in DEFENSES[:2]]
    page = build(tmp_path, rows)
    (table,) = page.tables["glance"]
    assert table[0][1] == ["From"]
    found = [line for line in table if line[1][0].strip() == "sensitive attribute"]
    assert [line[3] for line in found] == [["80.0 % of values", "73.8 to 85.3 %, null 50.0 %"]] * 2
    assert "ne-step probe" not in page.sections["glance"] + page.sections["glossary"]
