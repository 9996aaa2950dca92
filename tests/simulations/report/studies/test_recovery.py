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
from simulations.report.analysis.conclusion import verdicts
from simulations.report.analysis.line import Line
from simulations.report.analysis.readability import Readability
from simulations.report.analysis.sentences import sentence
from simulations.report.analysis.summary import summarise
from simulations.report.studies.cell import Cell
from simulations.report.studies.recovery import LEAST_GAIN, chance_of_as_many, is_recovered, with_recovered
from simulations.report.studies.study import split
from strategies.audit.score_rows import PICKED_DETAIL, PICKED_GAIN, PICKED_PSNR, rounded_gain
from tests.simulations.report.report_run import PROBE

NULL = 12.0
Image = tuple[float, float, bool]
"""PSNR, PSNR of the best null baseline for the image, whether the image was identified."""


def attacked(attack: str, images: list[Image], defense: str = "D()", at: int = 1, **given: Any) -> list[Row]:
    psnr = [one for one, _, _ in images]
    half = 2.13 * float(np.std(psnr, ddof=1)) / math.sqrt(len(psnr)) if len(psnr) > 1 else 0.5
    found = sorted((one, one - null) for one, null, hit in images if hit)
    known = {"defense": defense, "attack": attack, "round": at, "n": len(images), "reference": "original"} | given
    mean = float(np.mean(psnr))
    extra = {PICKED_PSNR: [one for one, _ in found], PICKED_GAIN: [rounded_gain(gain) for _, gain in found]}
    return [
        Row(metric="psnr", value=mean, ci_low=mean - half, ci_high=mean + half, worst=max(psnr), card=PROBE, **known),
        Row(metric="retrieval", value=len(found) / len(images), card=PROBE.but(chance=0.01), extra=extra, **known),
        Row(metric="psnr", value=NULL, card=PROBE, **known | {"attack": "mean", "role": Role.NULL_BASELINE}),
    ]


def told(rows: list[Row], **extra: Any) -> list[Row]:
    return [replace(row, extra=row.extra | extra) if PICKED_GAIN in row.extra else row for row in rows]


SEEN: list[Image] = [(30.0 + 0.1 * at, NULL, True) for at in range(16)]
MISSED: Image = (10.0, NULL, False)


def under(*rows: list[Row]) -> Line:
    every = [row for some in rows for row in some]
    plain = [row for attack in {row.attack for row in every if row.is_attack} for row in attacked(attack, SEEN, "")]
    return summarise(split(validate([*plain, *every]), ["", "D()"])[0], {})[1]


def strongest(*rows: list[Row]) -> Cell:
    return under(*rows).strongest


def recovered(rows: list[Row]) -> list[Row]:
    return [row for row in with_recovered(rows) if row.metric == "recovered"]


def test_an_image_is_recovered_if_it_is_identified_well_above_its_own_null_baseline() -> None:
    assert LEAST_GAIN == 3.0
    for psnr, null, identified, expected in (
        (15.0, 12.0, True, True), (14.99, 12.0, True, False), (99.0, 12.0, False, False), (None, 12.0, True, False),
        (20.0, None, True, False),
    ):  # fmt: skip
        assert is_recovered(psnr, null, identified) is expected
    # Eight flat tiles at 28 dB are half a decibel above theirs; three others lie at 16 dB, six above.
    found = strongest(attacked("A()", [(28.0, 27.5, True)] * 8 + [(16.0, 10.0, True)] * 3 + [MISSED] * 5))
    assert (found.recovered, found.best.gain, found.best.psnr) == ((3, 16), 6.0, 16.0)


def test_the_share_leads_where_psnr_and_single_images_say_otherwise() -> None:
    rows = [
        attacked("A()", [(24.0, 12.0, True)] * 5 + [(20.0, 19.0, False)] * 11),  # has the highest mean
        attacked("B()", [(16.0, 12.0, True)] * 7 + [MISSED] * 9),  # recovers most images
        attacked("C()", [(29.0, 9.0, True)] + [MISSED] * 15),  # holds the best-recovered image
        attacked("D2()", [(35.0, 34.0, True)] + [MISSED] * 15),  # and the one with the highest PSNR
    ]
    for order in (1, -1):
        line = under(*rows[::order])
        assert (line.strongest.attack, line.strongest.recovered) == ("B()", (7, 16))
        assert [word for _, word in verdicts(line)] == [Readability.PARTLY]
        text = sentence(line)
        assert "Its best-recovered image: 16.0 dB, 4.0 dB above the best null baseline for it." in text
        assert "The best-recovered image of all attacks is by C(), round 1, probe: 29.0 dB, 20.0 dB above" in text
        assert text.endswith("The highest PSNR of an image, recovered or not, is by D2(), round 1, probe: 35.0 dB.")
    # Of equal shares the larger gain leads.
    low, high = attacked("A()", [(16.0, 12.0, True)] * 16), attacked("B()", [(17.0, 12.0, True)] * 16, at=2)
    assert strongest(low, high).attack == "B()"
    bound = [replace(row, card=row.card.but(upper_bound="knows the labels")) for row in attacked("B()", SEEN)[:2]]
    line = under(attacked("A()", [(16.0, 12.0, True)] * 2 + [MISSED] * 14), bound)
    assert (line.strongest.attack, line.strongest.recovered) == ("A()", (2, 16))
    # A tile 20 dB above grey and about its own mean colour does not lead.
    tiles = attacked("A()", [(16.0, 10.0, True), (28.0, 8.0, True), *[MISSED] * 14])
    for details, said in (([0.0, -1.0], "; none of them"), ([0.1, -1.0], "; 1 of them"), ([10**400, 1.0], "")):
        line = under(told(tiles, **{PICKED_DETAIL: details}))
        assert line.strongest.recovered == (2, 16)
        assert said in sentence(line)
    best = strongest(told(tiles, **{PICKED_DETAIL: [5.0, 1.0]})).best
    assert (best.gain, best.psnr) == (6.0, 16.0)


images = st.lists(st.tuples(st.floats(5, 40), st.floats(5, 30), st.booleans()), min_size=16, max_size=16)


@given(st.lists(images, min_size=1, max_size=4))
@example([[(8.0, math.nextafter(5.0, 6.0), True)] + [(5.0, 5.0, False)] * 15])  # a gain that rounds to the least
def test_no_row_of_a_defence_is_worse_than_its_headline_says(found: list[list[Image]]) -> None:
    line = under(*(attacked(f"A(x={at})", one, at=at + 1) for at, one in enumerate(found)))
    gains = [p - null for one in found for p, null, hit in one if is_recovered(p, null, hit)]
    assert line.strongest.recovered == (max(sum(is_recovered(*one) for one in of) for of in found), 16)
    best = line.best_image.best.gain if line.best_image and line.best_image.best else None
    assert best == (pytest.approx(rounded_gain(max(gains))) if gains else None)
    assert line.highest_image.psnr.worst == max(p for one in found for p, _, _ in one)


def test_what_an_attack_paints_from_noise_is_not_recovered() -> None:
    for psnr, null, of_noise, half, share in (
        (16.0, 12.0, 11.0, 0.5, 1.0), (16.0, 12.0, 12.4, 0.5, 1.0), (16.0, 12.0, 20.0, 0.5, 0.0), (15.0, 11.0, 12.3, 1.3, 0.0),
    ):  # fmt: skip
        plain = attacked("A()", [(psnr, null, True)] * 16)
        rows = [replace(one, card=one.card.but(learns_prior=True)) for one in plain]
        ends = {"ci_low": of_noise - half, "ci_high": of_noise + half}
        noise = replace(rows[0], role=Role.NULL_CONTROL, value=of_noise, **ends)
        assert [row.value for row in recovered([*rows, noise])] == [share], of_noise


def test_shares_have_the_exact_interval_and_rows_without_single_images_tell_no_more_than_they_know() -> None:
    (share,) = recovered(attacked("A()", [(16.0, 12.0, True)] * 5 + [MISSED] * 11))
    assert (share.value, share.ci_low, share.ci_high) == tuple(binomial_interval(5, 16))

    def blind(images: list[Image], **extra: Any) -> list[float | None]:
        return [row.value for row in recovered([replace(row, extra=extra) for row in attacked("A()", images)])]

    far: list[Image] = [(19.0, 12.0, True)] * 8 + [(12.0, 12.0, False)] * 8
    weak: list[Image] = [(13.0, 12.0, True)] * 5 + [MISSED] * 11
    assert blind(far) == [0.5]
    # 13.25 dB, 1.25 above the baseline; clients told it of some images alone; the attack as a whole lies above nothing; damage.
    assert blind([(16.0, 12.0, True)] * 5 + [(12.0, 12.0, False)] * 11) == []
    assert blind(far, **{PICKED_PSNR: None}) == blind(weak) == []
    assert blind(weak, **{PICKED_PSNR: ["x", None, math.inf], PICKED_GAIN: 3}) == []


@pytest.mark.numeric
def test_the_chance_is_that_of_the_best_of_all_attacks() -> None:
    # The best of independent null guesses; a share of 200,000 draws is known to 0.001 (one deviation), a third of the margin.
    draws = np.random.default_rng(0).binomial(16, 0.05, (200_000, 6)).max(1)
    for k in (3, 4, 5):
        measured, bound = float((draws >= k).mean()), chance_of_as_many(k / 16, [(16, 0.05)] * 6)
        assert measured - 0.003 <= bound <= 1.2 * measured + 0.003
    # Of dependent guesses, such as one guess under six names, it is still a bound.
    assert chance_of_as_many(3 / 16, [(16, 0.05)] * 6) > float(binom.sf(2, 16, 0.05))
    assert chance_of_as_many(1 / 16, [(16, 0.05)] * 100) == chance_of_as_many(0, [(16, 0.05)]) == 1.0
    # Three of 96 is likely where one of 16 would not be: a share is compared with a share, with its own images and chance.
    few, many = (16, 0.01), (4, 0.25)
    expected = float(binom.sf(2, *few) + binom.sf(0, *many))
    assert chance_of_as_many(3 / 16, [few, many]) == pytest.approx(expected)
