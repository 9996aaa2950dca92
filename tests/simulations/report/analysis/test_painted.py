from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from attacks.metrics.names import Role
from simulations.report import Row, validate
from simulations.report.analysis.summary import summarise
from simulations.report.studies.control import controls
from simulations.report.studies.study import split
from tests.simulations.report.report_run import PROBE, hits, null
from tests.simulations.report.report_run import scored as a_score

FIRST = "InvertingGradients()"
CHAIN = f"{FIRST} | LearnedDenoiser()"


def scored(value: float | None, low: float | None, attack: str = CHAIN, **given: Any) -> Row:
    card = PROBE.but(learns_prior=True) if "Learn" in attack else PROBE
    return a_score(value, low, **{"attack": attack, "card": card} | given)


MEAN = [null(12.0, "mean", ci_low=11.5), null(0.2, "mean", ci_low=0.19, metric="ssim")]
PLAIN = [scored(20.0, 19.0, FIRST), hits(scored(20.0, 19.0, FIRST))]
REAL = [scored(22.0, 21.0), scored(0.8, 0.7, metric="ssim"), hits(scored(22.0, 21.0))]
RAN = [*MEAN, *PLAIN, *REAL]


def noise(value: float | None, low: float | None, **given: Any) -> Row:
    return scored(value, low, role=Role.NULL_CONTROL, **given)


NOTHING = [noise(11.0, 10.5), noise(0.25, 0.2, metric="ssim"), hits(noise(11.0, 10.5), 0)]


def status(rows: Sequence[Row], defense: str = "") -> str:
    place = (Role.ATTACK, CHAIN, defense)
    (found,) = {row.status for row in validate(rows) if (row.role, row.attack, row.defense) == place}
    return found


def test_a_painted_success_validates_nothing_however_strong_its_first_stage() -> None:
    assert status([*RAN, *NOTHING]) == "ok"
    for changed, why in (
        ([], "nobody scored what it makes of noise"),
        ([noise(None, None, status="failed")], "nobody scored"),
        ([noise(13.0, 12.1), *NOTHING[1:]], "on noise it scores above the mean image"),
        ([*NOTHING[:2], hits(noise(11.0, 10.5), 8)], "on noise it picks true images out"),
        ([NOTHING[0], noise(0.75, 0.7, metric="ssim"), NOTHING[2]], "SSIM is not clearly above"),
    ):
        assert status([*RAN, *changed]) == "not-validated", why
        assert why in next(one for one in controls([*RAN, *changed]) if one.row.attack == CHAIN).reason
        assert {row.status for row in validate([*RAN, *changed]) if row.attack == FIRST} == {"ok"}
    # Noise gives 11 dB, below the mean image of 12: an attack of 12.2 to 13 dB breaks; one that noise matches does not.
    weak = [*MEAN, *PLAIN, scored(12.6, 12.2), *REAL[1:]]
    assert (status([*weak, *NOTHING]), status([*weak, noise(12.3, 11.9), *NOTHING[1:]])) == ("ok", "not-validated")


def test_neither_its_first_stage_nor_another_defence_answers_for_it() -> None:

    def under(defense: str, *rows: Row) -> list[Row]:
        return [replace(row, defense=defense) for row in rows]

    assert status([*MEAN, *PLAIN, *under("D()", *REAL, *NOTHING)], "D()") == "not-validated"
    assert status([*RAN, *NOTHING, *under("D()", *REAL, *NOTHING)], "D()") == "ok"
    # Each defence has its own guess from noise.
    rows = [*RAN, *NOTHING, *under("D()", *REAL, noise(14.0, 13.0), *NOTHING[1:]), *under("E()", *REAL)]
    assert [status(rows, defense) for defense in ("", "D()", "E()")] == ["ok", "not-validated", "not-validated"]


def test_the_guess_from_noise_is_a_baseline_of_its_own_attack_alone_and_paint_never_leads() -> None:
    study = split(validate([*RAN, *NOTHING]), [""])[0]
    nulls = {cell.attack: cell.nulls for cell in study.cells}
    assert nulls == {FIRST: {"mean": 12.0}, CHAIN: {"mean": 12.0, "from noise": 11.0}}
    assert {cell.name for cell in study.null_cells} == {"mean", f"{CHAIN} on noise"}
    for made, leads in ((NOTHING, CHAIN), ([noise(21.0, 20.0), *NOTHING[1:]], FIRST)):
        assert summarise(split(validate([*RAN, *made]), [""])[0], {})[0].strongest.attack == leads
