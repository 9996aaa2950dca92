"""The null control of attacks that know images: a painted guess must never be called a validated attack."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from attacks.metrics.names import Role
from simulations.report import Row, validate
from simulations.report.analysis.summary import summarise
from simulations.report.studies.control import controls
from simulations.report.studies.study import split
from strategies.audit.threat_card import ThreatCard

PROBE = ThreatCard(observation="one-step probe", images=1)
FIRST = "InvertingGradients()"
CHAIN = f"{FIRST} | LearnedDenoiser()"


def scored(attack: str, value: float | None, low: float | None, **given: Any) -> Row:
    card = PROBE.but(learns_prior=True) if "Learn" in attack else PROBE
    base = Row(metric="psnr", reference="original", attack=attack, card=card, round=1, value=value, ci_low=low, n=16)
    return replace(base, **given)


def hits(attack: str, k: int, **given: Any) -> Row:
    row = scored(attack, k / 16, None, metric="retrieval", **given)
    return replace(row, card=row.card.but(chance=0.01))


def ssim(attack: str, value: float, low: float, **given: Any) -> Row:
    return scored(attack, value, low, metric="ssim", **given)


MEAN = [scored("mean", 12.0, 11.5, role=Role.NULL_BASELINE), ssim("mean", 0.2, 0.19, role=Role.NULL_BASELINE)]
PLAIN = [scored(FIRST, 20.0, 19.0), hits(FIRST, 16)]
REAL = [scored(CHAIN, 22.0, 21.0), ssim(CHAIN, 0.8, 0.7), hits(CHAIN, 16)]
NOISE = {"attack": CHAIN, "role": Role.NULL_CONTROL}
NOTHING = [scored(**NOISE, value=11.0, low=10.5), ssim(**NOISE, value=0.25, low=0.2), hits(**NOISE, k=0)]


def status(rows: Sequence[Row], defense: str = "") -> str:
    found = {
        row.status for row in validate(rows) if (row.role, row.attack, row.defense) == (Role.ATTACK, CHAIN, defense)
    }
    assert len(found) == 1
    return found.pop()


def under(defense: str, rows: Sequence[Row]) -> list[Row]:
    return [replace(row, defense=defense) for row in rows]


def test_it_counts_where_noise_gives_nothing() -> None:
    assert status([*MEAN, *PLAIN, *REAL, *NOTHING]) == "ok"


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ([], "nobody scored what it makes of noise"),
        ([scored(**NOISE, value=None, low=None, status="failed")], "nobody scored"),
        ([scored(**NOISE, value=13.0, low=12.1), *NOTHING[1:]], "on noise it scores above the mean image"),
        ([*NOTHING[:2], hits(**NOISE, k=8)], "on noise it picks true images out"),
        ([NOTHING[0], ssim(**NOISE, value=0.75, low=0.7), NOTHING[2]], "SSIM is not clearly above"),
    ],
)
def test_a_painted_success_validates_nothing_however_strong_its_first_stage(changed: list[Row], why: str) -> None:
    rows = [*MEAN, *PLAIN, *REAL, *changed]
    assert status(rows) == "not-validated"
    verdict = next(one for one in controls(rows) if one.row.attack == CHAIN)
    assert why in verdict.reason
    assert {row.status for row in validate(rows) if row.attack == FIRST} == {"ok"}


def test_scores_that_its_own_guess_from_noise_reaches_are_no_break() -> None:
    """Noise gives 11 dB, below the mean image of 12: an attack of 12.2 to 13 dB breaks; one that noise matches does not."""
    weak = [scored(CHAIN, 12.6, 12.2), *REAL[1:]]
    assert status([*MEAN, *PLAIN, *weak, *NOTHING]) == "ok"
    matched = [scored(**NOISE, value=12.3, low=11.9), *NOTHING[1:]]
    assert status([*MEAN, *PLAIN, *weak, *matched]) == "not-validated"


def test_its_first_stage_does_not_answer_for_it() -> None:
    """A refinement of known kind is credited with its inversion; one that knows images needs an undefended row of its own."""
    defended = under("D()", [*REAL, *NOTHING])
    assert status([*MEAN, *PLAIN, *defended], "D()") == "not-validated"
    assert status([*MEAN, *PLAIN, *REAL, *NOTHING, *defended], "D()") == "ok"


def test_each_defence_has_its_own_null_guess() -> None:
    painted = [scored(**NOISE, value=14.0, low=13.0), *NOTHING[1:]]
    rows = [*MEAN, *PLAIN, *REAL, *NOTHING, *under("D()", [*REAL, *painted]), *under("E()", REAL)]
    assert [status(rows, defense) for defense in ("", "D()", "E()")] == ["ok", "not-validated", "not-validated"]


def test_the_guess_from_noise_is_a_bar_for_its_own_attack_alone_and_is_shown_as_one() -> None:
    rows = validate([*MEAN, *PLAIN, *REAL, *NOTHING])
    study = split(rows, [""])[0]
    cells = {cell.attack: cell for cell in study.cells}
    assert set(cells) == {FIRST, CHAIN}
    assert cells[CHAIN].nulls == {"mean": 12.0, "from noise": 11.0}
    assert cells[FIRST].nulls == {"mean": 12.0}
    assert {cell.name for cell in study.null_cells} == {"mean", f"{CHAIN} on noise"}


def test_the_headline_does_not_lead_with_paint() -> None:
    painted = [scored(**NOISE, value=21.0, low=20.0), *NOTHING[1:]]
    study = split(validate([*MEAN, *PLAIN, *REAL, *painted]), [""])[0]
    assert summarise(study, {})[0].strongest.attack == FIRST
    study = split(validate([*MEAN, *PLAIN, *REAL, *NOTHING]), [""])[0]
    assert summarise(study, {})[0].strongest.attack == CHAIN
