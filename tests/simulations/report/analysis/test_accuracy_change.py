from typing import Any

import numpy as np
import pytest
from scipy import stats

from simulations.report.analysis.accuracy import accuracy_change
from simulations.report.studies.control import validate
from simulations.report.studies.intervals import newcombe
from simulations.report.studies.score import Score
from simulations.report.studies.study import split
from simulations.run_folder.rows import Row

DEFENSE = "D()"


def change(*rows: Row) -> Score | None:
    return accuracy_change(split(validate(rows), ["", DEFENSE])[0], DEFENSE, 1)


def accuracy(value: float, **given: Any) -> Row:
    return Row(**{"metric": "test-accuracy", "reference": "original", "round": 1, "value": value, "n": 1000, **given})


def test_newcombe_has_the_values_of_table_2_of_the_paper() -> None:
    for (a, m), (b, n), ends in (
        ((56, 70), (48, 80), (0.0524, 0.3339)), ((9, 10), (3, 10), (0.1705, 0.8090)), ((6, 7), (2, 7), (0.0582, 0.8062)),
        ((10, 10), (0, 20), (0.6791, 1.0)),
    ):  # fmt: skip
        assert newcombe((a / m, m), (b / n, n)) == pytest.approx(ends, abs=6e-5)


@pytest.mark.numeric
def test_the_interval_covers_the_true_change() -> None:
    # Four deviations of 2,000 draws around 95 %, and what the interval is known to be too wide by.
    for share, other, n in ((0.9, 0.6, 40), (0.5, 0.5, 137), (0.99, 0.97, 1000)):
        draws = np.random.default_rng(0).binomial(n, [share, other], size=(2000, 2)) / n
        ends = [newcombe((float(one), n), (float(two), n)) for one, two in draws]
        assert 0.93 <= np.mean([low <= share - other <= high for low, high in ends]) <= 0.985, (share, other)


def test_a_change_has_the_interval_of_its_images_or_of_seeds_that_disagree() -> None:
    for seeds in (1, 5):  # seeds that agree say nothing of other images
        rows = [accuracy(v, seed=s, defense=of) for s in range(seeds) for of, v in (("", 0.9), (DEFENSE, 0.8))]
        found = change(*rows)
        assert found.mean == pytest.approx(-0.1)
        assert (found.low, found.high) == pytest.approx(newcombe((0.8, 1000), (0.9, 1000)))
    lost = [0.0, 0.1, 0.3]
    rows = [accuracy(0.9, seed=seed) for seed in range(3)]
    found = change(*rows, *(accuracy(0.9 - one, seed=seed, defense=DEFENSE) for seed, one in enumerate(lost)))
    mean, half = np.mean(lost), stats.t.ppf(0.975, 2) * stats.sem(lost)
    assert (found.low, found.high) == pytest.approx((-mean - half, -mean + half))
    assert found.by_seed == pytest.approx({0: 0.0, 1: -0.1, 2: -0.3})


def test_the_interval_ends_at_what_is_possible_and_is_missing_where_a_number_is() -> None:
    values = ((0, "", 0.664), (1, "", 0.635), (0, DEFENSE, 0.212), (1, DEFENSE, 0.307))
    found = change(*(accuracy(value, seed=seed, n=137, defense=of) for seed, of, value in values))
    assert (found.low, 0 < found.high < 1) == (-1.0, True)
    found = change(accuracy(0.9, n=0), accuracy(0.8, n=0, defense=DEFENSE))
    assert (found.mean, found.low, found.high) == (pytest.approx(-0.1), None, None)
    assert change(accuracy(0.9), accuracy(0.8, seed=1, defense=DEFENSE)) is None  # no common seed
