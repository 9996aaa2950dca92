"""Counts of orders against exact factorials, enumeration of all outcomes, and the numbers of the specification."""

from __future__ import annotations

import math
from collections import Counter

import pytest

from defenses.smashed.patch_shuffle import BatchShuffle
from tests.defenses.smashed.test_patch_shuffle import algorithm_2


def counts(num_tokens: int, native: int, batch_size: int) -> tuple[float, float, float]:
    """log10 of all orders, of those that hold the target, and of their ratio."""
    found = BatchShuffle(k=native / num_tokens).hidden_orders(batch_size, num_tokens)
    every, share = found["log10-orders"], found["log10-target-share"]
    return every, every + share, share


@pytest.mark.parametrize(
    ("arguments", "total", "target", "share"),
    [
        ((4, 2, 2), 3.54, 1.38, -2.16),
        ((9, 5, 3), 21.22, 12.96, -8.25),
        ((196, 78, 50), 28239.73, 27624.25, -615.48),
        ((196, 147, 50), 22387.62, 21918.84, -468.78),
        ((196, 196, 50), 18285.29, 17919.59, -365.71),
    ],
)
def test_known_values(arguments: tuple[int, int, int], total: float, target: float, share: float):
    assert counts(*arguments) == pytest.approx((total, target, share), abs=0.006)


@pytest.mark.parametrize("arguments", [(4, 2, 2), (9, 5, 3), (16, 6, 8), (1, 0, 1), (7, 7, 4), (5, 0, 6), (196, 78, 3)])
def test_agrees_with_whole_number_arithmetic(arguments: tuple[int, int, int]):
    num_tokens, native, batch_size = arguments
    pooled = num_tokens - native

    def orders(images: int) -> int:
        return (math.comb(num_tokens, native) * math.factorial(native)) ** images * math.factorial(images * pooled)

    expected = math.log10(orders(batch_size)), math.log10(orders(batch_size - 1))
    assert counts(*arguments)[:2] == pytest.approx(expected, abs=1e-9)


def test_the_papers_small_example_is_exact():
    assert [round(10**number) for number in counts(4, 2, 2)[:2]] == [3456, 24]


@pytest.mark.parametrize(("num_tokens", "native"), [(2, 1), (3, 1), (3, 2), (3, 3), (2, 0)])
def test_they_count_the_outcomes_of_algorithm_2(num_tokens: int, native: int):
    """All outcomes are equally likely, so counts are probabilities; the target is image 0 in the order 0, 1, ..."""
    outcomes: Counter[tuple[int, ...]] = algorithm_2(num_tokens, native)
    assert len(set(outcomes.values())) == 1
    target = [outcome for outcome in outcomes if outcome[:num_tokens] == tuple(range(num_tokens))]
    expected = len(outcomes), len(target), len(target) / len(outcomes)
    assert [10**number for number in counts(num_tokens, native, 2)] == pytest.approx(expected)


def test_limits_of_the_share():
    def log10_factorial(number: int) -> float:
        return sum(map(math.log10, range(1, number + 1)))

    assert counts(196, 196, 50)[2] == pytest.approx(-log10_factorial(196), abs=1e-8)
    none_native = log10_factorial(49 * 196) - log10_factorial(50 * 196)
    assert counts(196, 0, 50)[2] == pytest.approx(none_native, abs=1e-7)
