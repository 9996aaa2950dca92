"""Differences between a defence and none, by image."""

import json
from math import comb

import numpy as np
import pytest

from simulations.report.analysis.finding import findings_of
from simulations.report.analysis.paired import ALIKE, FEWER, PairedDifference, exact_sign, holm, paired_interval
from tests.simulations.report.analysis.test_verdict import attacked, lines
from tests.simulations.report.report_run import study_of


@pytest.mark.parametrize(("gained", "lost"), [(0, 0), (0, 5), (0, 6), (3, 9), (7, 7)])
def test_the_exact_test_is_the_binomial_of_discordant_pairs(gained: int, lost: int) -> None:
    n, k = gained + lost, min(gained, lost)
    two_sided = min(1.0, 2 * sum(comb(n, at) for at in range(k + 1)) / 2**n) if n else 1.0
    assert exact_sign(gained, lost) == pytest.approx(two_sided)


def test_the_paired_interval_covers_the_true_difference() -> None:
    rng = np.random.default_rng(0)
    for cells in ((0.6, 0.05, 0.25, 0.1), (0.9, 0.02, 0.05, 0.03), (0.1, 0.4, 0.4, 0.1)):
        true = cells[1] - cells[2]
        counts = rng.multinomial(48, cells, size=2000)
        ends = [paired_interval(int(one[1]), int(one[2]), 48) for one in counts]
        assert np.mean([low <= true <= high for low, high in ends]) > 0.93
    assert paired_interval(0, 48, 48)[0] >= -1


def test_holm_multiplies_by_the_tests_that_are_left_and_keeps_the_order() -> None:
    def of(p: float) -> PairedDifference:
        return PairedDifference("identified", (0, 1), (1, 1), -1.0, -1.0, 0.0, p, True)

    found = holm({"a": of(0.03), "b": of(0.01), "c": of(0.02)})
    assert {name: one.p for name, one in found.items()} == pytest.approx({"b": 0.03, "c": 0.04, "a": 0.04})


def test_a_defence_is_compared_with_none_by_the_same_images() -> None:
    plain, defended = lines(attacked(30, 30), attacked(20, 20, defense="D()"))
    assert plain.messages[0].difference is None
    (difference,) = (one.difference for one in defended.messages)
    assert (difference.under, difference.without, difference.paired) == ((20, 48), (30, 48), True)
    # The first 20 of the 30 are found under both: 10 discordant pairs, all in one direction.
    assert difference.p == pytest.approx(2 / 2**10)
    assert difference.word == FEWER
    (alike,) = (one.difference for one in lines(attacked(30, 30), attacked(28, 28, defense="D()"))[1].messages)
    assert alike.word == ALIKE


def test_other_images_are_compared_without_pairs() -> None:
    rows = [json.loads(one.to_json()) for of in (attacked(30, 30), attacked(20, 20, defense="D()")) for one in of]
    moved = [one | ({"each_of": [[1, at] for at in range(48)]} if one["defense"] else {}) for one in rows]
    (message,) = findings_of(study_of(moved, ["", "D()"]), {})[1].messages
    difference = message.difference
    assert not difference.paired
    assert difference.low < -10 / 48 < difference.high
