"""Claims that numbers of earlier pages decide, with the intervals that these numbers allow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from entry import ANY, POINTS, Quoted

from simulations.report.analysis.accuracy_change import newcombe
from simulations.report.studies.score import interval


def of_images(left: float, right: float, n: int) -> tuple[float, float]:
    """Interval in points of the difference of two accuracies in per cent on n images each (Newcombe 1998, method 10)."""
    low, high = newcombe((left / 100, n), (right / 100, n))
    return 100 * low, 100 * high


def widened(claim: Quoted, left: float, right: float, n: int) -> Quoted:
    """A claim about the mean change of an accuracy over seeds that all test the same n images.

    Seeds that agree say nothing of other images, so that the interval is never narrower than that of one seed's images.

    Args:
        claim: With the page's interval over seeds.
        left: Mean accuracy in per cent.
        right: The one that it is compared with.
        n: Test images.
    """
    low, high = of_images(left, right, n)
    assert claim.low is not None
    assert claim.high is not None
    return replace(claim, low=min(low, claim.low), high=max(high, claim.high), possible=POINTS)


def by_seed(
    says: str,
    each: Sequence[float],
    side: str,
    bound: float,
    text: str,
    unit: str = "",
    paper: str = "",
    n: str = "",
) -> Quoted:
    """A claim about differences that a page has for each seed from 0 on, with Student's t over them."""
    low, high = interval(each)
    seeds = ", ".join(map(str, range(len(each))))
    mean, ends = sum(each) / len(each), POINTS if unit == "points" else ANY
    return Quoted(says, mean, low, high, side, bound, text, unit, paper, n, seeds, each=tuple(each), possible=ends)


def of_means(
    says: str,
    left: tuple[float, float],
    right: tuple[float, float],
    side: str,
    bound: float,
    text: str,
    unit: str = "",
    n: str = "",
) -> Quoted:
    """A claim about the difference of two means, each with half the width of its interval, as of one seed."""
    value, half = left[0] - right[0], left[1] + right[1]
    return Quoted(says, value, value - half, value + half, side, bound, text, unit, n=n)


def of_shares(
    says: str,
    left: float,
    right: float,
    n: int,
    side: str,
    bound: float,
    text: str,
    seeds: str = "",
    value: float | None = None,
) -> Quoted:
    """A claim about two accuracies in per cent on n images each, as of one seed: the interval is that of ``of_images``.

    ``value`` is the difference that the page has, where the difference of its rounded accuracies is another.
    """
    return Quoted(
        says,
        left - right if value is None else value,
        *of_images(left, right, n),
        side,
        bound,
        text,
        "points",
        n=f"{n:,} test examples",
        seeds=seeds,
        possible=POINTS,
    )


def shares_by_seed(
    says: str,
    pairs: Sequence[tuple[float, float]],
    n: int,
    side: str,
    bound: float,
    text: str,
    paper: str = "",
    units: str = "",
) -> Quoted:
    """A claim about two accuracies in per cent, of each seed from 0 on, on the same n test images.

    The interval is Student's t over the seeds, ``widened``. ``units`` describes the n images, where the page does not.
    """
    whole = by_seed(says, [left - right for left, right in pairs], side, bound, text, "points", paper, units)
    return widened(whole, *(sum(of) / len(pairs) for of in zip(*pairs, strict=True)), n)
