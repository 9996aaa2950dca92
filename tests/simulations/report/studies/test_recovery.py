"""When an image counts as recovered, and which attack makes the headline where PSNR, share and single images disagree."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from scipy.stats import binom

from attacks.metrics.names import Role
from attacks.scoring.roc import binomial_interval
from simulations.report import Row, validate
from simulations.report.analysis.conclusion import conclusion, verdicts
from simulations.report.analysis.line import Line
from simulations.report.analysis.readability import Readability
from simulations.report.analysis.sentences import sentence
from simulations.report.analysis.summary import summarise
from simulations.report.studies.recovery import LEAST_GAIN, chance_of_as_many, is_recovered, with_recovered
from simulations.report.studies.study import split
from strategies.audit.score_rows import MISSED_GAIN, PICKED_DETAIL, PICKED_GAIN, PICKED_PSNR, rounded_gain
from strategies.audit.threat_card import ThreatCard

CARD = ThreatCard(observation="probe")
NULL = 12.0


def attacked(
    attack: str, images: list[tuple[float, float, bool]], defense: str = "D()", at: int = 1, **given: Any
) -> list[Row]:
    """Rows of an attack on images, each (PSNR, PSNR of the best null baseline for it, whether it was identified)."""
    psnr = [one for one, _, _ in images]
    half = 2.13 * float(np.std(psnr, ddof=1)) / math.sqrt(len(psnr)) if len(psnr) > 1 else 0.5
    found = sorted((one, one - null) for one, null, hit in images if hit)
    known = {"defense": defense, "attack": attack, "round": at, "n": len(images), "reference": "original"} | given
    mean = float(np.mean(psnr))
    extra = {PICKED_PSNR: [one for one, _ in found], PICKED_GAIN: [rounded_gain(gain) for _, gain in found]}
    return [
        Row(metric="psnr", value=mean, ci_low=mean - half, ci_high=mean + half, worst=max(psnr), card=CARD, **known),
        Row(metric="retrieval", value=len(found) / len(images), card=CARD.but(chance=0.01), extra=extra, **known),
        Row(metric="psnr", value=NULL, card=CARD, **known | {"attack": "mean", "role": Role.NULL_BASELINE}),
    ]


def lines(*rows: list[Row]) -> list[Line]:
    every = [row for some in rows for row in some]
    plain = [row for attack in {row.attack for row in every if row.is_attack} for row in attacked(attack, SEEN, "")]
    return summarise(split(validate([*plain, *every]), ["", "D()"])[0], {})


SEEN = [(30.0 + 0.1 * at, NULL, True) for at in range(16)]
MISSED = (10.0, NULL, False)
FLAT = (28.0, 27.5, True)
"""A flat tile: any guess has a high PSNR, and the null baseline as well."""


def test_an_image_is_recovered_by_its_own_null_baseline() -> None:
    """Eight flat tiles at 28 dB are half a decibel above theirs; three others lie at 16 dB, six above."""
    (line,) = lines(attacked("A()", [FLAT] * 8 + [(16.0, 10.0, True)] * 3 + [MISSED] * 5))[1:]
    assert line.strongest is not None
    assert line.strongest.recovered == (3, 16)
    assert line.strongest.best is not None
    assert (line.strongest.best.gain, line.strongest.best.psnr) == (6.0, 16.0)


def test_a_dark_flat_tile_does_not_lead() -> None:
    """It lies 20 dB above grey, and one above its own mean colour: there is nothing but that colour to recover."""
    found = attacked("A()", [(16.0, 10.0, True), (28.0, 8.0, True), *[MISSED] * 14])
    rows = [
        replace(row, extra=row.extra | {PICKED_DETAIL: [5.0, 1.0]}) if PICKED_GAIN in row.extra else row
        for row in found
    ]
    (line,) = lines(rows)[1:]
    assert line.strongest is not None
    assert line.strongest.recovered == (2, 16)
    assert line.strongest.best is not None
    assert (line.strongest.best.gain, line.strongest.best.psnr) == (6.0, 16.0)
    assert "16.0 dB, 6.0 dB above the best null baseline for it and 5.0 dB above its own mean colour" in sentence(line)
    assert "above their own mean colour" not in sentence(line), "both are"


@pytest.mark.parametrize(
    ("details", "told"),
    [([0.0, -1.0], "none"), ([0.1, -1.0], "1"), ([None, None], ""), ([3.0], ""), ([10**400, 1.0], "")],
)
def test_guesses_below_the_own_mean_colour_of_their_images_are_counted(details: list[Any], told: str) -> None:
    """They are identified by their colour alone. Rows that do not say it for each image say nothing."""
    found = attacked("A()", [(16.0, 10.0, True), (28.0, 8.0, True), *[MISSED] * 14])
    rows = [
        replace(row, extra=row.extra | {PICKED_DETAIL: details}) if PICKED_GAIN in row.extra else row for row in found
    ]
    (line,) = lines(rows)[1:]
    assert line.strongest is not None
    assert line.strongest.recovered == (2, 16)
    assert (f"; {told} of them above their own mean colour" if told else "recovered 2 of 16") in sentence(line)
    assert told or "mean colour" not in sentence(line)


@pytest.mark.parametrize(
    ("psnr", "null", "identified", "expected"),
    [
        (15.0, 12.0, True, True),
        (14.99, 12.0, True, False),
        (99.0, 12.0, False, False),
        (None, 12.0, True, False),
        (20.0, None, True, False),
    ],
)
def test_both_tests_must_hold(psnr: float | None, null: float | None, identified: bool, expected: bool) -> None:
    assert LEAST_GAIN == 3.0
    assert is_recovered(psnr, null, identified) is expected


@pytest.mark.parametrize("order", [1, -1])
def test_share_leads_where_psnr_and_single_images_say_otherwise(order: int) -> None:
    """A has the highest mean, B recovers most images, C holds the best-recovered image, and D the one with the highest PSNR."""
    rows = [
        attacked("A()", [(24.0, 12.0, True)] * 5 + [(20.0, 19.0, False)] * 11),
        attacked("B()", [(16.0, 12.0, True)] * 7 + [MISSED] * 9),
        attacked("C()", [(29.0, 9.0, True)] + [MISSED] * 15),
        attacked("D2()", [(35.0, 34.0, True)] + [MISSED] * 15),
    ]
    (line,) = lines(*rows[::order])[1:]
    assert line.strongest is not None
    assert (line.strongest.attack, line.strongest.recovered) == ("B()", (7, 16))
    assert [word for _, word in verdicts(line)] == [Readability.PARTLY]
    assert "D: partly readable (7 of 16 recovered)" in conclusion([line])
    text = sentence(line)
    assert text.startswith("the strongest attack recovered 7 of 16 images (95 % interval ")
    assert "Its best-recovered image: 16.0 dB, 4.0 dB above the best null baseline for it." in text
    assert "The best-recovered image of all attacks is by C(), round 1, probe: 29.0 dB, 20.0 dB above" in text
    assert text.endswith("The highest PSNR of an image, recovered or not, is by D2(), round 1, probe: 35.0 dB.")


def test_of_equal_shares_the_larger_gain_leads() -> None:
    low, high = attacked("A()", [(16.0, 12.0, True)] * 16), attacked("B()", [(17.0, 12.0, True)] * 16, at=2)
    (line,) = lines(low, high)[1:]
    assert line.strongest is not None
    assert line.strongest.attack == "B()"


images = st.lists(st.tuples(st.floats(5, 40), st.floats(5, 30), st.booleans()), min_size=16, max_size=16)


@given(st.lists(images, min_size=1, max_size=4))
@example([[(8.0, math.nextafter(5.0, 6.0), True)] + [(5.0, 5.0, False)] * 15])  # a gain that rounds to the least
def test_no_row_of_a_defence_is_worse_than_its_headline_says(found: list[list[tuple[float, float, bool]]]) -> None:
    rows = [attacked(f"A(x={at})", one, at=at + 1) for at, one in enumerate(found)]
    (line,) = lines(*rows)[1:]
    gains = [p - null for one in found for p, null, hit in one if is_recovered(p, null, hit)]
    counts = [sum(is_recovered(*one) for one in of) for of in found]
    assert line.strongest is not None
    assert line.strongest.recovered == (max(counts), 16)
    assert (line.best_image.best.gain if line.best_image and line.best_image.best else None) == (
        pytest.approx(rounded_gain(max(gains))) if gains else None
    )
    assert line.highest_image is not None
    assert line.highest_image.psnr is not None
    assert line.highest_image.psnr.worst == max(p for one in found for p, _, _ in one)


def test_an_upper_bound_is_neither_the_headline_nor_its_best_image() -> None:
    told = [replace(row, card=row.card.but(upper_bound="knows the labels")) for row in attacked("B()", SEEN)[:2]]
    (line,) = lines(attacked("A()", [(16.0, 12.0, True)] * 2 + [MISSED] * 14), told)[1:]
    assert line.strongest is not None
    assert (line.strongest.attack, line.strongest.recovered) == ("A()", (2, 16))
    assert line.best_image is line.strongest


def test_gains_of_all_images_are_those_of_the_rows() -> None:
    """Two recovered images, one that is identified and lies too low, and one that is not identified though it lies high."""
    found = attacked("A()", [(16.0, NULL, True), (20.0, NULL, True), (13.0, NULL, True), (19.0, NULL, False)])
    rows = [replace(row, extra=row.extra | {MISSED_GAIN: [7.0]}) if PICKED_GAIN in row.extra else row for row in found]
    cell = next(one for one in split(rows, ["D()"])[0].cells if one.attack == "A()")
    assert cell.gains == ((4.0, 8.0), (1.0, 7.0))
    assert cell.recovered == (2, 4)
    # Rows that do not report the others, or not all of them, have no gains of all images.
    few = [replace(row, extra=row.extra | {MISSED_GAIN: []}) if PICKED_GAIN in row.extra else row for row in found]
    for some in (found, few):
        assert next(one for one in split(some, ["D()"])[0].cells if one.attack == "A()").gains is None


def test_what_an_attack_paints_from_noise_is_not_recovered() -> None:
    """Single images must beat what the attack makes of noise as well; where that is a success in itself, nothing counts."""

    def painting(of_noise: float) -> Row:
        rows = [
            replace(one, card=one.card.but(learns_prior=True)) for one in attacked("A()", [(16.0, 12.0, True)] * 16)
        ]
        noise = replace(rows[0], role=Role.NULL_CONTROL, value=of_noise, ci_low=of_noise - 0.5, ci_high=of_noise + 0.5)
        return next(row for row in with_recovered([*rows, noise]) if row.metric == "recovered")

    assert (painting(11.0).value, painting(12.4).value, painting(20.0).value) == (1.0, 1.0, 0.0)
    # Four decibels above the mean image, and less than three above what the attack makes of noise.
    far = [replace(one, card=one.card.but(learns_prior=True)) for one in attacked("A()", [(15.0, 11.0, True)] * 16)]
    noise = replace(far[0], role=Role.NULL_CONTROL, value=12.3, ci_low=11.0, ci_high=13.6)
    assert [row.value for row in with_recovered([*far, noise]) if row.metric == "recovered"] == [0.0]


def test_shares_have_the_exact_interval_and_rows_without_single_images_tell_no_more_than_they_know() -> None:
    (share,) = [
        row
        for row in with_recovered(attacked("A()", [(16.0, 12.0, True)] * 5 + [MISSED] * 11))
        if row.metric == "recovered"
    ]
    assert (share.value, share.ci_low, share.ci_high) == tuple(binomial_interval(5, 16))
    old = [replace(row, extra={}) for row in attacked("A()", [(16.0, 12.0, True)] * 5 + [(12.0, 12.0, False)] * 11)]
    assert not [row for row in with_recovered(old) if row.metric == "recovered"], "13.25 dB, 1.25 above the baseline"
    far = [replace(row, extra={}) for row in attacked("A()", [(19.0, 12.0, True)] * 8 + [(12.0, 12.0, False)] * 8)]
    assert [row.value for row in with_recovered(far) if row.metric == "recovered"] == [0.5]
    # Where clients told it of some images alone, nobody knows which of the others count.
    some = [replace(row, extra={PICKED_PSNR: None}) for row in far]
    assert not [row for row in with_recovered(some) if row.metric == "recovered"]
    # Some were identified, and the attack as a whole lies above nothing: which of them would count nobody knows.
    weak = [replace(row, extra={}) for row in attacked("A()", [(13.0, 12.0, True)] * 5 + [MISSED] * 11)]
    assert not [row for row in with_recovered(weak) if row.metric == "recovered"]
    damaged = [replace(row, extra={PICKED_PSNR: ["x", None, math.inf], PICKED_GAIN: 3}) for row in weak]
    assert not [row for row in with_recovered(damaged) if row.metric == "recovered"]


def test_the_chance_is_that_of_the_best_of_all_attacks() -> None:
    """Against a simulation of the best of independent null guesses, which the union bound is close to where it is small."""
    draws = np.random.default_rng(0).binomial(16, 0.05, (200_000, 6)).max(1)
    for recovered in (3, 4, 5):
        measured = float((draws >= recovered).mean())
        bound = chance_of_as_many(recovered / 16, [(16, 0.05)] * 6)
        assert measured - 0.003 <= bound <= 1.2 * measured + 0.003
    # Of dependent guesses, such as one guess under six names, it is still a bound.
    alone = np.random.default_rng(1).binomial(16, 0.05, 200_000)
    assert chance_of_as_many(3 / 16, [(16, 0.05)] * 6) > float((alone >= 3).mean())
    assert chance_of_as_many(1 / 16, [(16, 0.05)] * 100) == 1.0
    assert chance_of_as_many(0, [(16, 0.05)]) == 1.0


def test_each_attack_counts_with_its_own_images_and_chance() -> None:
    """Three of 96 is likely where one of 16 would not be: a share is compared with a share."""
    few, many = (16, 0.01), (4, 0.25)
    expected = float(binom.sf(2, *few) + binom.sf(0, *many))
    assert chance_of_as_many(3 / 16, [few, many]) == pytest.approx(expected)
    assert chance_of_as_many(7 / 16, [few]) == pytest.approx(float(binom.sf(6, *few)))


def test_a_count_stands_beside_no_sentence_that_denies_it() -> None:
    """Two of eight images recovered: too few for a verdict, and no "no attack is shown to recover"."""
    few = [(30.0, NULL, True)] * 2 + [MISSED] * 6
    plain = summarise(split(validate(attacked("A()", few, "")), [""])[0], {})
    text = conclusion(plain)
    assert text == (
        "Without a defence: unknown (2 of 8 recovered): too few images were attacked for a verdict, which needs 16 or more."
    )
    assert "recovered 2 of 8 images" in sentence(plain[0])
    both = summarise(split(validate([*attacked("A()", few, ""), *attacked("A()", few[1:])]), ["", "D()"])[0], {})
    assert conclusion(both).endswith(" 16 or more. D: unknown (1 of 7 recovered).")
    none = summarise(split(validate(attacked("A()", [MISSED] * 8, "")), [""])[0], {})
    assert (
        "unknown (0 of 8 recovered): too few images were attacked for a verdict, which needs 16 or more, so nothing here is"
        in conclusion(none)
    )


def test_an_attack_that_lost_a_seed_says_of_which_its_count_is() -> None:
    found = [(20.0, 10.0, True)] * 8 + [MISSED] * 8
    few = [(20.0, 10.0, True)] * 2 + [MISSED] * 14
    weak = [row for seed in (0, 1) for row in attacked("B()", few, seed=seed)]
    (line,) = lines(attacked("A()", found, seed=0), weak)[1:]
    assert "recovered 8 of 16 images" in sentence(line)
    assert "of seed 0 alone, for the attack has no score of seed 1" in sentence(line)
    whole = [row for seed in (0, 1) for row in attacked("A()", found, seed=seed)]
    (line,) = lines(whole, weak)[1:]
    assert "over 2 seeds" in sentence(line)
    assert "alone" not in sentence(line)
