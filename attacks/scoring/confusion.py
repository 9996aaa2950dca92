"""Accuracy and Matthews correlation from counts of one class against the others, as clients report them.

Counts may be integers or whole floats, as messages carry them; all sums and products are exact, of any size.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction


def matthews(tp: float, tn: float, fp: float, fn: float) -> float:
    """Matthews correlation coefficient of a binary classifier, in [-1, 1].

        (tp tn - fp fn) / sqrt((tp + fp) (tp + fn) (tn + fp) (tn + fn))

    of true and false positives and negatives. 0 where the denominator is: a constant answer, or a test of one class alone, shows
    no correlation.

    Raises:
        ValueError: When a count is negative or not whole.

    Source: Matthews, "Comparison of the predicted and observed secondary structure of T4 phage lysozyme", 1975; Eq. 10 of Yao et
    al., ICDM 2022.
    """
    hits, rejections, alarms, misses = map(_whole, ("tp", "tn", "fp", "fn"), (tp, tn, fp, fn))
    product = (hits + alarms) * (hits + misses) * (rejections + alarms) * (rejections + misses)
    if not product:
        return 0.0
    difference = hits * rejections - alarms * misses
    # One rounding of the exact square: nothing overflows, and a perfect classifier has exactly 1.
    return math.copysign(math.sqrt(Fraction(difference**2, product)), difference)


def micro_mcc(tp: Sequence[float], fp: Sequence[float], fn: Sequence[float], total: float) -> float:
    """Matthews correlation of the counts of all K classes taken together, one against the others.

    ``tp``, ``fp`` and ``fn`` are K numbers each, of ``total`` examples, each of which counts once for every class. Where each has
    one class and gets one answer, this is (K accuracy - 1) / (K - 1).

    Raises:
        ValueError: When the lists are empty or of different lengths, or counts do not fit into ``total``.
    """
    return matthews(*(sum(counts) for counts in zip(*_tables(tp, fp, fn, total), strict=True)))


def macro_mcc(tp: Sequence[float], fp: Sequence[float], fn: Sequence[float], total: float) -> float:
    """Mean over classes of the Matthews correlation of one class against the others. Arguments and errors as ``micro_mcc``."""
    tables = _tables(tp, fp, fn, total)
    return math.fsum(matthews(*table) for table in tables) / len(tables)


def accuracy(tp: Sequence[float], total: float) -> float:
    """Share of examples whose one answer is right, in [0, 1]: true positives of all classes over ``total``.

    Raises:
        ValueError: When there are no examples, or more true positives than examples.
    """
    hits, examples = sum(_whole("tp", count) for count in tp), _whole("total", total)
    if not 0 <= hits <= examples or not examples:
        raise ValueError(f"{hits} right answers on {examples} examples")
    return hits / examples


def share_of_labels(fp: Sequence[float], fn: Sequence[float], total: float) -> float:
    """Mean over K labels of the share of examples that are answered rightly, in [0, 1]; counts as in ``micro_mcc``.

    Raises:
        ValueError: When there are no examples or labels, or more wrong answers than answers.
    """
    wrong, answers = sum(_whole("fp or fn", count) for count in (*fp, *fn)), len(fp) * _whole("total", total)
    if not 0 <= wrong <= answers or not answers or len(fp) != len(fn):
        raise ValueError(f"{wrong} wrong answers of {answers}")
    return 1 - wrong / answers


def _tables(
    tp: Sequence[float], fp: Sequence[float], fn: Sequence[float], total: float
) -> list[tuple[int, int, int, int]]:
    """(tp, tn, fp, fn) of each class."""
    if not len(tp) == len(fp) == len(fn) or not len(tp):
        raise ValueError(f"{len(tp)}, {len(fp)} and {len(fn)} counts; expected one of each kind for every class")
    tables = []
    for at, counts in enumerate(zip(tp, fp, fn, strict=True)):
        hits, alarms, misses = map(_whole, ("tp", "fp", "fn"), counts)
        rejections = _whole("total", total) - hits - alarms - misses
        if rejections < 0:
            raise ValueError(f"class {at}: tp = {hits}, fp = {alarms} and fn = {misses} of {total} examples")
        tables.append((hits, rejections, alarms, misses))
    return tables


def _whole(name: str, count: float) -> int:
    if not math.isfinite(count) or count < 0 or count != int(count):
        raise ValueError(f"{name} is {count!r}; allowed: a whole number >= 0")
    return int(count)
