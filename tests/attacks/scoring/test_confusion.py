"""Matthews correlation against the correlation of indicator vectors, scikit-learn, and numbers worked out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from sklearn import metrics

from attacks.scoring.confusion import accuracy, macro_mcc, matthews, micro_mcc

COUNTS = st.integers(0, 12)


def correlation(first: NDArray[np.bool_], second: NDArray[np.bool_]) -> float:
    """Pearson's, 0 where one of the two does not vary."""
    if first.all() or second.all() or not first.any() or not second.any():
        return 0.0
    return float(np.corrcoef(first, second)[0, 1])


def answers(seed: int, classes: int, count: int = 60) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Truth and guess, right in about half of the cases."""
    draw = np.random.default_rng(seed)
    truth = draw.integers(classes, size=count)
    return truth, np.where(draw.random(count) < 0.5, truth, draw.integers(classes, size=count))


def counts(truth: NDArray[np.int64], guess: NDArray[np.int64], classes: int) -> tuple[list[int], list[int], list[int]]:
    pairs = list(zip(truth.tolist(), guess.tolist(), strict=True))
    kinds = [
        [sum(t == g == k for t, g in pairs), sum(g == k != t for t, g in pairs), sum(t == k != g for t, g in pairs)]
        for k in range(classes)
    ]
    tp, fp, fn = zip(*kinds, strict=True)
    return list(tp), list(fp), list(fn)


def test_the_example_of_the_specification() -> None:
    assert matthews(50, 30, 10, 10) == pytest.approx(1400 / 2400, abs=1e-15)


@given(COUNTS, COUNTS, COUNTS, COUNTS)
@settings(max_examples=80, deadline=None)
def test_it_is_the_correlation_of_two_indicators(tp: int, tn: int, fp: int, fn: int) -> None:
    truth = np.repeat([True, False, False, True], [tp, tn, fp, fn])
    guess = np.repeat([True, False, True, False], [tp, tn, fp, fn])
    expected = correlation(truth, guess) if len(truth) else 0.0
    assert matthews(tp, tn, fp, fn) == pytest.approx(expected, abs=1e-12)
    assert matthews(tn, tp, fn, fp) == matthews(tp, tn, fp, fn), "names of the two classes do not matter"
    assert matthews(fn, fp, tn, tp) == -matthews(tp, tn, fp, fn), "the opposite answers"


@pytest.mark.parametrize(
    ("table", "value"),
    [((7, 5, 0, 0), 1.0), ((0, 0, 3, 4), -1.0), ((6, 0, 4, 0), 0.0), ((0, 6, 0, 4), 0.0), ((9, 0, 0, 0), 0.0)],
)
def test_perfect_opposite_and_constant_answers(table: tuple[int, int, int, int], value: float) -> None:
    assert matthews(*table) == value


def test_no_examples_show_no_correlation() -> None:
    assert matthews(0, 0, 0, 0) == 0


@pytest.mark.parametrize("scale", [10**6, 10**15, 10**90])
def test_counts_of_any_size_neither_overflow_nor_lose_digits(scale: int) -> None:
    assert matthews(50 * scale, 30 * scale, 10 * scale, 10 * scale) == matthews(50, 30, 10, 10)
    # A difference that doubles would round away.
    big = 10**17
    assert matthews(big, big + 1, big, big) == pytest.approx(0.25 / big, rel=1e-9)


@pytest.mark.parametrize("classes", [2, 3, 10])
@pytest.mark.parametrize("seed", [0, 1])
def test_pooled_and_mean_correlation_of_several_classes(classes: int, seed: int) -> None:
    truth, guess = answers(seed, classes)
    columns = np.arange(classes)[:, None]
    true, said = truth == columns, guess == columns
    table = (*counts(truth, guess, classes), len(truth))
    assert micro_mcc(*table) == pytest.approx(correlation(true.ravel(), said.ravel()), abs=1e-12)
    each = [correlation(true[k], said[k]) for k in range(classes)]
    assert macro_mcc(*table) == pytest.approx(sum(each) / classes, abs=1e-12)
    others = [metrics.matthews_corrcoef(true[k], said[k]) for k in range(classes)]
    assert macro_mcc(*table) == pytest.approx(np.mean(others), abs=1e-12)
    share = accuracy(table[0], len(truth))
    assert share == pytest.approx(np.mean(truth == guess), abs=1e-15)
    assert micro_mcc(*table) == pytest.approx((classes * share - 1) / (classes - 1), abs=1e-12)


def test_the_counts_of_many_independent_attributes_are_pooled_too() -> None:
    """40 attributes, of which an example may have any number, as CelebA has; one never occurs and is never said."""
    draw = np.random.default_rng(3)
    truth = draw.random((40, 50)) < draw.random((40, 1))
    guess = truth ^ (draw.random((40, 50)) < 0.2)
    truth[7] = guess[7] = False
    table = ((truth & guess).sum(1).tolist(), (~truth & guess).sum(1).tolist(), (truth & ~guess).sum(1).tolist(), 50)
    assert micro_mcc(*table) == pytest.approx(correlation(truth.ravel(), guess.ravel()), abs=1e-12)
    assert macro_mcc(*table) == pytest.approx(np.mean(list(map(correlation, truth, guess))), abs=1e-12)


def test_a_constant_answer_to_ten_balanced_classes_is_worth_nothing() -> None:
    truth, guess = np.arange(100) % 10, np.zeros(100, dtype=np.int64)
    table = (*counts(truth, guess, 10), 100)
    assert micro_mcc(*table) == 0
    assert macro_mcc(*table) == 0
    assert accuracy(table[0], 100) == 0.1
    right = (*counts(truth, truth, 10), 100)
    assert micro_mcc(*right) == macro_mcc(*right) == accuracy(right[0], 100) == 1


def test_whole_floats_are_counts_as_messages_carry_them() -> None:
    assert matthews(50.0, 30.0, 10.0, 10.0) == matthews(50, 30, 10, 10)
    assert micro_mcc([5.0, 1.0], [1.0, 2.0], [2.0, 1.0], 9.0) == micro_mcc([5, 1], [1, 2], [2, 1], 9)


@pytest.mark.parametrize("bad", [-1, 0.5, math.nan, math.inf])
def test_refuses_what_is_no_count(bad: float) -> None:
    with pytest.raises(ValueError, match=r"tp is .*; allowed: a whole number >= 0"):
        matthews(bad, 1, 1, 1)
    with pytest.raises(ValueError, match=r"total is .*; allowed"):
        accuracy([1], bad)


@pytest.mark.parametrize("function", [micro_mcc, macro_mcc])
def test_refuses_tables_that_fit_nothing(function) -> None:
    with pytest.raises(ValueError, match="2, 1 and 2 counts"):
        function([1, 2], [1], [1, 2], 9)
    with pytest.raises(ValueError, match="0, 0 and 0 counts"):
        function([], [], [], 0)
    with pytest.raises(ValueError, match="class 1: tp = 4, fp = 3 and fn = 3 of 9 examples"):
        function([1, 4], [1, 3], [1, 3], 9)


def test_accuracy_refuses_more_right_answers_than_examples_and_no_examples() -> None:
    with pytest.raises(ValueError, match="6 right answers on 5 examples"):
        accuracy([4, 2], 5)
    with pytest.raises(ValueError, match="0 right answers on 0 examples"):
        accuracy([0, 0], 0)
