"""Intervals and tests of shares of images and of their differences; images of one message count together."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from attacks.scoring.intervals import binomial_interval, mean_interval

Z = 1.959963984540054
LEVEL = 0.05
"""Of every test of this report: the rate at which a guess that knows the class alone passes it, over all attacks tried."""
LEAST_MESSAGES = 3
"""Below which there is no test of a difference. Of two messages that are found as a whole or not at all, by even odds under either
defence, both change alike in one of eight cases."""
Count = tuple[int, int]
"""(k, n): k of n images."""
Range = tuple[float | None, float | None]
"""Both ends of an interval; None without one."""
Ends = tuple[float, float, float]
"""A share and both ends of its interval."""


class Change(NamedTuple):
    """A difference of shares, its 95 % interval within [-1, 1], and the two-sided probability of one as large without a cause."""

    mean: float
    low: float = -1.0
    high: float = 1.0
    p: float = 1.0


def by_chance(hits: int, images: int, chance: float) -> float:
    """Probability that a guess which knows the class alone identifies as many of the images: the binomial's upper tail.

    Such a guess finds one image of a message independently of the others or rather instead of them, so that it is no larger for
    images of one message.
    """
    from scipy.special import betainc

    return float(betainc(hits, images - hits + 1, chance)) if hits > 0 else 1.0


def interval(values: Sequence[float]) -> Range:
    """``mean_interval`` of independent runs; None without two runs of finite values."""
    if len(values) < 2 or not all(map(math.isfinite, values)):
        return None, None
    return mean_interval(values)[1:]


def in_messages(counts: Sequence[Count]) -> tuple[float, float | None, float | None]:
    """The share of images found, and its interval, which lets images of one message depend on each other.

    It is the exact interval of Clopper and Pearson of as many independent images as tell as much,

        n = N / d * (t(N - 1) / t(k - 1))^2,    d = max(1, k / (k - 1) sum_i (h_i - p n_i)^2 / (N p (1 - p)))

    for h_i of n_i images in each of k messages, N in all. Without variance between messages d is 1: where all of them are found,
    or none, only the second factor says how few they are. A single message has no interval; messages of one image have n = N.

    Source: Korn and Graubard, "Confidence intervals for proportions with small expected number of positive counts estimated from
    survey data", Survey Methodology 24, 1998.
    """
    from scipy.special import betaincinv

    hits, images = _sum(counts)
    if images == len(counts):
        return binomial_interval(hits, images)
    share = hits / images
    if len(counts) < 2:
        return share, None, None
    expected = images * share * (1 - share)
    design = max(1.0, _between(counts, share) * images**2 / expected) if expected else 1.0
    few = few_messages(images, len(counts))
    k, n = hits / design * few, images / design * few
    low = float(betaincinv(k, n - k + 1, 0.025)) if hits else 0.0
    return share, low, float(betaincinv(k + 1, n - k, 0.975)) if hits < images else 1.0


def few_messages(images: float, messages: float) -> float:
    """(t(N - 1) / t(k - 1))^2, the factor of ``in_messages`` for N images in k messages, two or more."""
    return (_quantile(images - 1) / _quantile(messages - 1)) ** 2


def paired(messages: Sequence[tuple[int, int, int]]) -> Change:
    """The change of the share of the same images: (gained, lost, images) of each message.

    Of messages of one image: ``paired_images``. Else Student's t with one degree of freedom fewer than messages; its variance is
    that between messages, or that of ``paired_images`` where this is larger.
    """
    gained, lost, n = (sum(message[at] for message in messages) for at in range(3))
    if len(messages) == n:
        return paired_images(gained, lost, n)
    change = (gained - lost) / n
    between = _between([(gain - loss, size) for gain, loss, size in messages], change)
    return _by_student(change, max(_paired_variance(gained, lost, n), between), len(messages))


def paired_images(gained: int, lost: int, n: int) -> Change:
    """The change of the share of n images, with the exact test of McNemar (1947) and the interval of Bonett and Price.

    Source: Bonett and Price, "Adjusted Wald confidence interval for a difference of binomial proportions based on paired data",
    Journal of Educational and Behavioral Statistics 2012, Eq. 8: one discordant pair is added in each direction.
    """
    from scipy.special import betainc

    middle, half = (gained - lost) / (n + 2), Z * math.sqrt(_paired_variance(gained, lost, n))
    more, less = max(gained, lost), min(gained, lost)
    p = min(1.0, 2 * float(betainc(more, less + 1, 0.5))) if more else 1.0
    return Change((gained - lost) / n, max(middle - half, -1.0), min(middle + half, 1.0), p)


def _paired_variance(gained: int, lost: int, n: int) -> float:
    more, less = (gained + 1) / (n + 2), (lost + 1) / (n + 2)
    return (more + less - (more - less) ** 2) / (n + 2)


def unpaired(one: Sequence[Count], other: Sequence[Count]) -> Change:
    """The first share less the second, of other images each: (k, n) of each message.

    Of messages of one image: Fisher's exact test, and Newcombe's interval. Else Student's t with one degree of freedom fewer than
    the fewer messages; each variance is that between messages, or that of the share with one image added to either side (Agresti
    and Caffo, "Simple and effective confidence intervals for proportions", The American Statistician 54, 2000) if larger.
    """
    from scipy.stats import fisher_exact

    sides = [_sum(one), _sum(other)]
    shares = [(k / n, n) for k, n in sides]
    change = shares[0][0] - shares[1][0]
    if (len(one), len(other)) == (sides[0][1], sides[1][1]):
        p = float(fisher_exact(np.array([[k, n - k] for k, n in sides])).pvalue)
        return Change(change, *newcombe(*shares), p)
    variance = 0.0
    for counts, (k, n) in zip((one, other), sides, strict=True):
        added = (k + 1) / (n + 2)
        variance += max(added * (1 - added) / (n + 2), _between(counts, k / n))
    return _by_student(change, variance, min(len(one), len(other)))


def _sum(counts: Sequence[Count]) -> Count:
    return sum(hits for hits, _ in counts), sum(images for _, images in counts)


def _between(counts: Sequence[Count], share: float) -> float:
    """Variance of a share or mean by that of messages: k / (k - 1) sum_i (h_i - p n_i)^2 / N^2; 0 of one message."""
    squares = math.fsum((hits - share * size) ** 2 for hits, size in counts)
    return squares * len(counts) / max(len(counts) - 1, 1) / sum(size for _, size in counts) ** 2


def _by_student(change: float, variance: float, messages: int) -> Change:
    from scipy.special import stdtr

    if messages < LEAST_MESSAGES:
        return Change(change)
    half = _quantile(messages - 1) * math.sqrt(variance)
    p = 2 * float(stdtr(messages - 1, -abs(change) / math.sqrt(variance)))
    return Change(change, max(change - half, -1.0), min(change + half, 1.0), p)


def _quantile(freedom: float) -> float:
    from scipy.special import stdtrit

    return float(stdtrit(freedom, 0.975))


def wilson(share: float, n: int) -> tuple[float, float]:
    """Wilson's 95 % interval of a share of ``n`` independent yes/no results: all p with |share - p| <= z sqrt(p (1 - p) / n)."""
    middle = (share + Z * Z / (2 * n)) / (1 + Z * Z / n)
    half = Z / (1 + Z * Z / n) * math.sqrt(share * (1 - share) / n + Z * Z / (4 * n * n))
    return max(middle - half, 0.0), min(middle + half, 1.0)


def newcombe(one: tuple[float, int], other: tuple[float, int]) -> tuple[float, float]:
    """95 % interval of the share ``one`` less ``other``, each with its number of independent yes/no results; within [-1, 1]."""
    low, high = square_and_add((one[0], *wilson(*one)), (other[0], *wilson(*other)))
    return max(low, -1.0), min(high, 1.0)


def square_and_add(one: Ends, other: Ends) -> tuple[float, float]:
    """Interval of d = b - a from those of both, each given as share, low and high.

        low = d - sqrt((b - b_low)^2 + (a_high - a)^2),    high = d + sqrt((b_high - b)^2 + (a - a_low)^2)

    It takes the two as independent. Of the same images they agree more, so that the interval is wider than it need be.

    Source: Newcombe, "Interval estimation for the difference between independent proportions", 1998, method 10.
    """
    (share, low, high), (other_share, other_low, other_high) = one, other
    change = share - other_share
    return (
        change - math.hypot(share - low, other_high - other_share),
        change + math.hypot(high - share, other_share - other_low),
    )
