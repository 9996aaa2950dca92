"""The interval of a change in accuracy, against published values and draws of the binomial distribution."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy import stats

from simulations.report.analysis.accuracy_change import accuracy_change, newcombe
from simulations.report.studies.control import validate
from simulations.report.studies.score import Score, wilson
from simulations.report.studies.study import split
from simulations.run_folder.rows import Row

DEFENSE = "D()"


def change(*rows: Row) -> Score | None:
    return accuracy_change(split(validate(rows), ["", DEFENSE])[0], DEFENSE, 1)


def accuracy(value: float, **given: Any) -> Row:
    return Row(**{"metric": "test-accuracy", "reference": "original", "round": 1, "value": value, "n": 1000, **given})


@pytest.mark.parametrize(
    ("one", "other", "ends"),
    [
        ((56 / 70, 70), (48 / 80, 80), (0.0524, 0.3339)),
        ((9 / 10, 10), (3 / 10, 10), (0.1705, 0.8090)),
        ((6 / 7, 7), (2 / 7, 7), (0.0582, 0.8062)),
        ((10 / 10, 10), (0 / 20, 20), (0.6791, 1.0)),
    ],
)
def test_newcombe_has_the_values_of_table_2_of_the_paper(
    one: tuple[float, int], other: tuple[float, int], ends: tuple[float, float]
) -> None:
    assert newcombe(one, other) == pytest.approx(ends, abs=6e-5)


def test_the_tail_sets_the_width() -> None:
    one, other = (56 / 70, 70), (48 / 80, 80)
    assert newcombe(one, other, tail=0.025) == newcombe(one, other)
    low, high = wilson(*one, 0.005)
    expected = stats.binomtest(56, 70).proportion_ci(0.99, "wilson")
    assert (low, high) == pytest.approx((expected.low, expected.high))
    assert (
        newcombe(one, other, tail=0.005)[0]
        < newcombe(one, other)[0]
        < newcombe(one, other)[1]
        < newcombe(one, other, tail=0.005)[1]
    )


@pytest.mark.parametrize(("share", "other", "n"), [(0.9, 0.6, 40), (0.5, 0.5, 137), (0.99, 0.97, 1000)])
def test_the_interval_covers_the_true_change(share: float, other: float, n: int) -> None:
    draws = np.random.default_rng(0).binomial(n, [share, other], size=(2000, 2)) / n
    ends = [newcombe((float(one), n), (float(two), n)) for one, two in draws]
    covered = np.mean([low <= share - other <= high for low, high in ends])
    assert 0.93 <= covered <= 0.985


def test_one_seed_has_the_interval_of_its_test_images() -> None:
    found = change(accuracy(0.9), accuracy(0.8, defense=DEFENSE))
    assert found is not None
    assert found.mean == pytest.approx(-0.1)
    assert (found.low, found.high) == pytest.approx(newcombe((0.8, 1000), (0.9, 1000)))


def test_seeds_that_agree_say_nothing_of_other_images() -> None:
    rows = [accuracy(0.9, seed=seed) for seed in range(5)] + [
        accuracy(0.8, seed=seed, defense=DEFENSE) for seed in range(5)
    ]
    found = change(*rows)
    assert found is not None
    assert (found.low, found.high) == pytest.approx(newcombe((0.8, 1000), (0.9, 1000)))


def test_seeds_that_disagree_widen_the_interval() -> None:
    lost = [0.0, 0.1, 0.3]
    rows = [accuracy(0.9, seed=seed) for seed in range(3)]
    rows += [accuracy(0.9 - one, seed=seed, defense=DEFENSE) for seed, one in enumerate(lost)]
    found = change(*rows)
    assert found is not None
    mean, half = np.mean(lost), stats.t.ppf(0.975, 2) * stats.sem(lost)
    assert (found.low, found.high) == pytest.approx((-mean - half, -mean + half))
    assert found.by_seed == pytest.approx({0: 0.0, 1: -0.1, 2: -0.3})


def test_the_interval_ends_at_what_is_possible() -> None:
    rows = [accuracy(one, seed=seed, n=137) for seed, one in enumerate((0.664, 0.635))]
    rows += [accuracy(one, seed=seed, n=137, defense=DEFENSE) for seed, one in enumerate((0.212, 0.307))]
    found = change(*rows)
    assert found is not None
    assert found.low == -1.0
    assert found.high is not None
    assert 0 < found.high < 1


def test_a_number_without_its_images_has_no_interval() -> None:
    found = change(accuracy(0.9, n=0), accuracy(0.8, n=0, defense=DEFENSE))
    assert found is not None
    assert (found.mean, found.low, found.high) == (pytest.approx(-0.1), None, None)


def test_without_a_common_seed_there_is_no_change() -> None:
    assert change(accuracy(0.9), accuracy(0.8, seed=1, defense=DEFENSE)) is None
