"""The section on a sensitive attribute: who read more than the most frequent value, and what each adversary learned from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from simulations.report import Row, validate, write_report
from simulations.report.sections.attributes import SensitiveAttribute, inferred_attributes
from simulations.report.studies.score import wilson
from simulations.report.studies.study import split
from tests.simulations.report import report_run
from tests.simulations.report.report_run import CONFIG, Page, row, write_run

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
    return row(
        metric="attribute-accuracy",
        value=share,
        attack=attack,
        defense=defense,
        card=card,
        cut=more.get("cut", ""),
        n=n,
        ci_low=low,
        ci_high=high,
    )


def every_row(n: int = N) -> list[dict[str, Any]]:
    found = [inferred(defense, attack, share, n) for defense, of in SHARES.items() for attack, share in of.items()]
    return found + [inferred(defense, "majority", 0.5, n) | {"role": "null baseline"} for defense in PIPELINES]


def section(rows: list[dict[str, Any]]) -> SensitiveAttribute | None:
    (study,) = split(validate([Row.from_json(one) for one in rows]), PIPELINES)
    return inferred_attributes(study, ())


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


def test_too_few_guesses_are_no_verdict_and_cuts_have_a_section_of_their_own() -> None:
    few = section(every_row(n=10))
    assert few is not None
    assert {one.cell.status for one in few.found} == {"under-powered"}
    assert (few.retrained, few.reading) == (0, 0)
    assert section([inferred("", STATIC, 0.9, cut="conv2")]) is None
    assert section([row(metric="test-accuracy", value=0.5)]) is None


@pytest.mark.parametrize(("knows", "expected"), [(False, "static"), (True, "retrained"), (None, "retrained")])
def test_the_card_says_what_an_adversary_learned_from(knows: bool | None, expected: str) -> None:
    found = section([inferred(NOISE, "A()", 0.9, **({} if knows is None else {"knows_defenses": knows}))])
    assert found is not None
    assert [one.kind for one in found.found] == [expected]


def test_the_page_shows_it(tmp_path: Path) -> None:
    out = write_run(tmp_path / "run", every_row(), CONFIG | {"pipelines": PIPELINES, "defenses": {}}, [])
    text = write_report(out).read_text(encoding="utf-8")
    Page(text)
    assert 'id="attributes' in text
    assert "in\n1 of 2 cases" in text


def test_beside_images_an_attribute_has_a_line_of_its_own_and_nothing_is_said_of_probes(tmp_path: Path) -> None:
    rows = [inferred(defense, RETRAINED, 0.8) for defense in report_run.PIPELINES]
    rows += [inferred(defense, "majority", 0.5) | {"role": "null baseline"} for defense in report_run.PIPELINES]
    page = Page(write_report(write_run(tmp_path, rows=[*report_run.demo_rows(), *rows])).read_text(encoding="utf-8"))
    (table,) = page.tables["glance"]
    assert table[0][1] == ["From"]
    found = [line for line in table if line[1][0].strip() == "sensitive attribute"]
    assert len(found) == len(report_run.PIPELINES)
    assert found[0][3] == ["80.0 % of values", "73.8 to 85.3 %, null 50.0 %"]
    assert "ne-step probe" not in page.sections["glance"] + page.sections["glossary"]
