"""Recommendations and their intervals, on results whose answer is known."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import ttest_1samp

from simulations.search.measured import verdict
from simulations.search.measured.judging import Judgement
from simulations.search.measured.proposals import CONTROL, NONE, RANDOM
from simulations.search.measured.settings import Measured
from simulations.search.measured.trials import Judged, front
from simulations.search.measured.verdict import MeanInterval, compare, nominees, outcomes

SEARCH = Measured(confirmed=1)


def result(
    hybrid: str, origin: str, accuracy: float, recovered: int, gain: float = 3.0, seed: int = 1, attacked: int = 32
) -> Judged:
    return Judged(hybrid, origin, seed, (Judgement(accuracy, 1000, recovered, attacked, gain, "an attack", 1.0),), True)


def over_seeds(hybrid: str, origin: str, accuracy: float, recovered: int, attacked: int = 32) -> list[Judged]:
    """The same images recovered with each of three seeds."""
    return [result(hybrid, origin, accuracy + 0.001 * at, recovered, seed=at, attacked=attacked) for at in range(3)]


def held_out(recovered: int, accuracy: float = 0.82) -> list[Judged]:
    random = [one for at in range(10) for one in over_seeds(f"{at}", CONTROL, 0.7, 18 + at % 5)]
    return [*over_seeds("", NONE, 0.83, 32), *over_seeds("20-21", RANDOM, accuracy, recovered), *random]


def test_the_interval_over_seeds_is_students() -> None:
    values = [0.1, 0.4, 0.5, 0.9]
    found, expected = MeanInterval.over_seeds(values), ttest_1samp(values, 0).confidence_interval()
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high))
    assert math.isinf(MeanInterval.over_seeds([0.3]).high)


@pytest.mark.parametrize(
    ("recovered", "accuracy", "recommended"), [(2, 0.82, True), (2, 0.79, False), (20, 0.82, False), (31, 0.82, False)]
)
def test_only_a_hybrid_that_keeps_accuracy_and_is_better_than_random_ones_is_recommended(
    recovered: int, accuracy: float, recommended: bool
) -> None:
    known = outcomes(held_out(recovered, accuracy))
    (one,) = compare(SEARCH, known, ["20-21"])
    assert one.recommended is recommended
    assert one.fewer == pytest.approx(20 / 32 - recovered / 32)
    assert one.low < one.fewer < one.high


def test_a_hybrid_of_the_mean_is_seldom_recommended(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its share is the mean of those of random hybrids, so that about 2.5 % of intervals lie above 0: 7 of 100 at most."""
    monkeypatch.setattr(verdict, "RESAMPLES", 2000)
    draws = np.random.default_rng(0)
    false = 0
    for _ in range(100):
        shares = [60 / 90, *draws.beta(6, 3, 10)]
        every = [
            one
            for at, share in enumerate(shares)
            for one in [result(f"{at}", CONTROL if at else RANDOM, 0.83, int(draws.binomial(96, share)), attacked=96)]
        ]
        (one,) = compare(SEARCH, outcomes([result("", NONE, 0.83, 96, attacked=96), *every]), ["0"])
        false += one.recommended
    assert false <= 7


def test_random_hybrids_that_are_as_good_are_counted() -> None:
    known = outcomes(held_out(20))
    (one,) = compare(SEARCH, known, ["20-21"])
    assert (one.as_good, one.chance) == (0, 1 / 11)  # none of them keeps accuracy
    better = outcomes([*held_out(20), *over_seeds("1-2", CONTROL, 0.82, 20), *over_seeds("3-4", CONTROL, 0.82, 21)])
    (one,) = compare(SEARCH, better, ["20-21"])
    assert (one.as_good, one.random) == (1, 12)


def test_a_hybrid_that_failed_on_a_seed_has_fewer_images() -> None:
    every = [one for one in held_out(2) if (one.hybrid, one.seed) != ("20-21", 2)]
    assert next(one for one in outcomes(every) if one.hybrid == "20-21").attacked == 64


def test_the_front_holds_what_nothing_else_beats_in_all_three_numbers() -> None:
    every = [
        result("", NONE, 0.83, 32, 80.0),
        result("1", RANDOM, 0.80, 10, 2.0),
        result("2", RANDOM, 0.79, 10, 2.0),
        result("3", RANDOM, 0.79, 10, 1.0),
        result("4", RANDOM, 0.70, 0, 5.0),
    ]
    assert [one.hybrid for one in front(every)] == ["", "1", "3", "4"]


def test_nominees_hide_much_and_lose_little_more_than_is_tolerated() -> None:
    every = [
        result("", NONE, 0.83, 32, 80.0),
        result("1", RANDOM, 0.82, 32),  # 1.0: nothing is hidden
        result("2", RANDOM, 0.79, 16),  # 0.5 + 0.01 / 0.1
        result("3", RANDOM, 0.60, 0),  # 0.0 + 0.20 / 0.1
    ]
    assert [one.hybrid for one in nominees(Measured(confirmed=3), every)] == ["2", "1", "3"]
    assert nominees(Measured(confirmed=0), every) == []
