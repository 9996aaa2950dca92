"""The rule by which claims are confirmed, refuted or open."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
import records
import verdict
from entry import Cell, Claim, Entry, Quoted, Run
from mixer_claims import JIGSAW, SHREDDER
from mixer_entries import ENTRIES
from scipy import stats

from attacks.metrics.names import Role
from simulations.report.studies.score import wilson
from simulations.run_folder.rows import Row
from strategies.audit.threat_card import ThreatCard

LEFT, RIGHT = Cell("psnr", "Blur()", "A()", "original"), Cell("psnr", "", "A()", "original")
BELOW = Claim("Blur hides.", ((1.0, LEFT), (-1.0, RIGHT)), "below", 0.0, "dB")


def rows(seed: int, defended: float, plain: float, half: float = 1.0, status: str = "ok") -> list[Row]:
    """Of one seed: the attack under the defence and without one, each with an interval."""
    return [
        Row(metric="psnr", seed=seed, defense=cell.defense, attack="A()", role=Role.ATTACK, reference="original", value=value,
            n=16, ci_low=value - half, ci_high=value + half, status=status)
        for cell, value in ((LEFT, defended), (RIGHT, plain))
    ]  # fmt: skip


def judged(*seeds: Sequence[Row]) -> verdict.Judged:
    return verdict.judge(BELOW, {"r": dict(enumerate(seeds))}, "r")


def test_seeds_decide_by_students_t_of_paired_differences() -> None:
    clear = judged(rows(0, 10.0, 20.0), rows(1, 15.0, 25.5), rows(2, 5.0, 14.5))
    assert clear.verdict == verdict.CONFIRMED
    assert clear.value == pytest.approx(-10.0)
    half = stats.t.ppf(0.975, 2) * 0.5 / 3**0.5
    assert (clear.low, clear.high) == (pytest.approx(-10 - half), pytest.approx(-10 + half))
    assert (clear.n, clear.seeds) == (48, (0, 1, 2))
    assert judged(rows(0, 20.0, 10.0), rows(1, 25.5, 15.0), rows(2, 14.5, 5.0)).verdict == verdict.REFUTED
    assert judged(rows(0, 10.0, 11.0), rows(1, 12.0, 11.0), rows(2, 9.0, 11.0)).verdict == verdict.OPEN


def test_of_one_seed_the_rows_intervals_decide() -> None:
    assert judged(rows(0, 10.0, 13.0)).verdict == verdict.CONFIRMED
    assert judged(rows(0, 10.0, 13.0)).low == pytest.approx(-5.0)
    assert judged(rows(0, 10.0, 11.5)).verdict == verdict.OPEN
    assert judged(rows(0, 13.0, 10.0)).verdict == verdict.REFUTED


@pytest.mark.parametrize("status", ["not-validated", "under-powered"])
def test_an_attack_that_is_not_validated_leaves_a_claim_open(status: str) -> None:
    found = judged(rows(0, 10.0, 30.0, status=status))
    assert (found.verdict, found.note) == (verdict.OPEN, status)
    mixed = judged(rows(0, 10.0, 20.0), rows(1, 10.0, 20.0, status=status), rows(2, 10.0, 20.1))
    assert mixed.verdict == verdict.OPEN


def test_without_rows_a_claim_is_open() -> None:
    assert judged().note == "not run yet"
    assert judged(rows(0, 1.0, 2.0)[:1]).note == "the runs have no such number"


def test_counts_need_no_interval_and_other_numbers_do() -> None:
    def of(metric: str) -> verdict.Judged:
        claim = Claim("Small.", ((1.0, Cell(metric)),), "below", 10.0)
        return verdict.judge(claim, {"r": {0: [Row(metric=metric, value=9.0, n=1)]}}, "r")

    assert of("edge-macs").verdict == verdict.CONFIRMED
    assert (of("test-loss").verdict, of("test-loss").note) == (verdict.OPEN, "no interval")


ACCURACY, PLAIN = Cell("test-accuracy", "Blur()", reference="deployed"), Cell("test-accuracy", reference="deployed")
AT_MOST = Claim("At most 60 %.", ((1.0, ACCURACY),), "below", 0.6)


def accuracies(seed: int, *values: float) -> list[Row]:
    """Of one seed: the accuracy under the defence and without one, on 400 images."""
    cells = (ACCURACY, PLAIN)
    return [
        Row(metric="test-accuracy", seed=seed, defense=cell.defense, reference="original", value=value, n=400)
        for cell, value in zip(cells, values, strict=False)
    ]


@pytest.mark.parametrize("values", [(0.59, 0.5925, 0.5875), (0.59, 0.59, 0.59)])
def test_seeds_that_agree_on_the_same_images_say_nothing_of_other_images(values: Sequence[float]) -> None:
    found = {"r": {seed: accuracies(seed, value) for seed, value in enumerate(values)}}
    one = verdict.judge(AT_MOST, found, "r")
    assert (one.verdict, one.value) == (verdict.OPEN, pytest.approx(0.59))
    assert one.low is not None
    assert one.high is not None
    low, high = wilson(0.59, 400)
    assert one.low <= low + 0.001
    assert one.high >= high - 0.001
    line = records.score([row for rows in found["r"].values() for row in rows], ACCURACY)
    assert line is not None
    assert line.low is not None
    assert one.low <= line.low


def test_differences_on_the_same_images_are_never_narrower_than_one_seeds() -> None:
    costs = Claim("At most 3 points.", ((1.0, ACCURACY), (-1.0, PLAIN)), "above", -0.03)
    found = {"r": {seed: accuracies(seed, 0.59 + at, 0.6 + at) for seed, at in enumerate((0.0, 0.003, 0.0055))}}
    found["r"][2][0] = accuracies(2, 0.596)[0]
    one = verdict.judge(costs, found, "r")
    low, high = wilson(0.593, 400)[0], wilson(0.603, 400)[1]
    assert one.verdict == verdict.OPEN
    # Newcombe 1998, method 10: the two distances to the ends of Wilson's intervals add up as the sides of a right angle.
    assert one.low == pytest.approx(-0.01 - ((0.593 - low) ** 2 + (high - 0.603) ** 2) ** 0.5, abs=0.002)


def test_attacked_images_of_every_seed_are_others_unless_they_are_queries() -> None:
    def ends(card: ThreatCard) -> tuple[float | None, float | None]:
        found = [rows(0, 10.0, 20.0), rows(1, 10.0, 20.1), rows(2, 10.0, 20.2)]
        carded = [[replace(row, card=card) for row in of] for of in found]
        one = judged(*carded)
        return one.low, one.high

    half = stats.t.ppf(0.975, 2) * 0.1 / 3**0.5
    assert ends(ThreatCard(observation="one-step probe")) == (pytest.approx(-10.1 - half), pytest.approx(-10.1 + half))
    assert ends(ThreatCard(observation="queries")) == (pytest.approx(-12.1), pytest.approx(-8.1))


def test_a_seed_without_a_number_leaves_a_claim_open() -> None:
    whole = [rows(0, 10.0, 20.0), rows(1, 10.0, 20.1), rows(2, 10.0, 20.2)]
    assert judged(*whole).verdict == verdict.CONFIRMED
    failed = judged(*whole[:2], rows(2, 10.0, 20.0)[1:])
    assert (failed.verdict, failed.note, failed.seeds) == (verdict.OPEN, "no number in seed 2", (0, 1))


def test_an_attack_that_fails_without_a_defence_refutes_that_it_works() -> None:
    def works(value: float, status: str, control: bool = True) -> verdict.Judged:
        claim = Claim("It works.", ((1.0, RIGHT),), "above", 0.0, "dB", control=control)
        return verdict.judge(claim, {"r": {0: rows(0, 0.0, value, status=status)}}, "r")

    assert works(-7.0, "not-validated").verdict == verdict.REFUTED
    assert works(7.0, "not-validated").verdict == verdict.CONFIRMED
    assert works(-7.0, "not-validated", control=False).verdict == verdict.OPEN
    assert works(-7.0, "under-powered").verdict == verdict.OPEN


@pytest.mark.parametrize(("words", "seeds"), [("0, 1, 2", 3), ("0", 1), ("three", 3), ("one", 1), ("none", 1), ("", 1)])
def test_seeds_are_counted_in_words(words: str, seeds: int) -> None:
    assert verdict.count(words) == seeds


def page_of(seeds: str, says: str = BELOW.says) -> Entry:
    """An entry of one claim, which a page refutes."""
    return Entry("P", "Table 1", "s", (Run("r"),), (BELOW,), "page.md", quoted=(
        Quoted(says, 5.0, 4.0, 6.0, "below", 0.0, "5.0", seeds=seeds),
    ))  # fmt: skip


def test_a_page_decides_until_as_many_seeds_measured_the_same_claim() -> None:
    entry = page_of("0, 1, 2")
    clear = {seed: rows(seed, 10.0, 20.0 + seed / 10) for seed in range(3)}
    for seeds in range(3):
        found = verdict.judged(entry, {"r": {seed: clear[seed] for seed in range(seeds)}})
        assert [(one.claim, one.verdict) for one in found] == [(entry.quoted[0], verdict.REFUTED)]
    found = verdict.judged(entry, {"r": clear})
    assert [(one.claim, one.verdict) for one in found] == [(BELOW, verdict.CONFIRMED)]


def test_another_claim_of_a_page_stays_whatever_ran() -> None:
    entry = page_of("0", "Another claim.")
    found = verdict.judged(entry, {"r": {0: rows(0, 1.0, 9.0)}})
    assert [one.verdict for one in found] == [verdict.CONFIRMED, verdict.REFUTED]
    assert verdict.verdict_on(entry, found) == verdict.REFUTED


def test_the_shredder_is_compared_with_the_upload_as_it_is() -> None:
    entry = next(one for one in ENTRIES if one.name == "Figure 8")
    cells = verdict.cells_of((entry,), "outsourced")
    attacked = [
        Row(
            metric=cell.metric, seed=seed, defense=cell.defense, attack=cell.attack, reference="original",
            role=Role.ATTACK, n=16, ci_low=value - 1, ci_high=value + 1,
            value=value, card=ThreatCard(observation=cell.observation),
        )
        for seed in range(3)
        for cell in cells
        for value in [{"AsUploaded()": 24.0 + seed / 10, SHREDDER: 28.0 + seed / 9}.get(cell.attack, 20.0)]
    ]  # fmt: skip
    found = {"outsourced": {seed: [row for row in attacked if row.seed == seed] for seed in range(3)}}
    assert {cell.attack for cell in cells} == {"AsUploaded()", SHREDDER, JIGSAW}
    of = verdict.judged(entry, found)
    assert [one.verdict for one in of] == [verdict.REFUTED, verdict.CONFIRMED, verdict.OPEN]
    assert verdict.verdict_on(entry, verdict.judged(entry, {})) == verdict.OPEN


def test_a_note_holds_a_quoted_claim_open() -> None:
    held = Quoted("From a page.", 5.0, 4.0, 6.0, "above", 0.0, "5.0", note="another measure")
    one = verdict.quote(held)
    assert (one.verdict, one.note) == (verdict.OPEN, "another measure")


def test_drawings_and_what_needs_other_data_have_words_of_their_own() -> None:
    assert verdict.verdict_on(Entry("P", "Figure 1", "s", why="A drawing."), []) == "nothing to check"
    assert verdict.verdict_on(Entry("P", "Figure 2", "s", why="Needs data.", absent=True), []) == "cannot be run here"
