"""How well scores tell members from non-members: the ROC curve, its area, and the true positives at few false ones.

All functions take two vectors of scores, higher = more likely a member, and use their order only: an increasing transformation of
all scores changes nothing. Infinite scores are fine; NaN has no order and is refused.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Floats = NDArray[np.float64]
CONFIDENCE = 0.95
"""Level of every confidence interval."""


class Estimate(NamedTuple):
    """A rate in [0, 1] with its confidence interval."""

    value: float
    low: float
    high: float


def roc_curve(members: Tensor, nonmembers: Tensor) -> tuple[Tensor, Tensor]:
    """False and true positive rates of the test "score >= threshold", for every threshold that changes either.

    Of scores (M,) of members and (N,) of non-members: (fpr, tpr), float64, of one length, from (0, 0) to (1, 1), both rising; tied
    scores make one step, not several. ``ValueError`` on empty, NaN or other than one-dimensional scores, here and below.
    """
    false, true = _counts(*_checked(members, nonmembers))
    return torch.from_numpy(false / len(nonmembers)), torch.from_numpy(true / len(members))


def auc(members: Tensor, nonmembers: Tensor) -> float:
    """Area under the ROC curve: the probability that a member scores above a non-member, ties counting one half.

    This is the Mann-Whitney statistic U / (M N).
    """
    return float(_placements(*_checked(members, nonmembers))[0].mean())


def auc_interval(members: Tensor, nonmembers: Tensor) -> tuple[float, float]:
    """95 % confidence interval of ``auc``, from DeLong's variance on the logit scale.

        var = Var_i(a_i) / M + Var_j(b_j) / N

    with a_i the share of non-members below member i and b_j the share of members above non-member j.

    Returns:
        (low, high) within [0, 1]. With fewer than two members or non-members, (0, 1). At an AUC of exactly 0 or 1, where the
        variance is zero too, the Clopper-Pearson interval of min(M, N) disjoint pairs that all came out the same way. Scores that
        are all equal have an AUC of 0.5 by definition, and (0.5, 0.5).

    Source: DeLong, DeLong, Clarke-Pearson, "Comparing the areas under two or more correlated receiver operating characteristic
    curves", Biometrics 1988. They use the plain scale, whose interval covers too rarely and leaves [0, 1] near an area of 1.
    """
    from scipy import special

    above, below = _placements(*_checked(members, nonmembers))
    area, fewer = float(above.mean()), min(len(above), len(below))
    if fewer < 2:
        return 0.0, 1.0
    if area in (0.0, 1.0):
        return binomial_interval(fewer if area else 0, fewer)[1:]
    deviation = math.sqrt(above.var(ddof=1) / len(above) + below.var(ddof=1) / len(below))
    reach = special.ndtri((1 + CONFIDENCE) / 2) * deviation / (area * (1 - area))
    low, high = special.expit(special.logit(area) + np.array([-reach, reach]))
    return float(low), float(high)


def tpr_at_fpr(members: Tensor, nonmembers: Tensor, fpr: float = 0.01) -> Estimate:
    """The largest true positive rate among the thresholds whose false positive rate is at most ``fpr``.

    Nothing is interpolated: with fewer than 1 / fpr non-members the threshold must lie above all of them.

    Returns:
        The rate, with a 95 % interval of the rate at the threshold that all non-members of this kind would give: half of the error
        is that of the threshold, which lies between two of the non-members' scores (their ranks are binomial), and half that of
        Clopper-Pearson's intervals over the members at these two. With few times 1 / fpr non-members the
        lower end is 0.

    Source: Carlini et al., "Membership Inference Attacks From First Principles", 2022, section III.
    """
    from scipy import stats

    if not 0 <= fpr <= 1:
        raise ValueError(f"fpr is {fpr!r}; allowed: a rate from 0 to 1")
    false, true = _counts(*_checked(members, nonmembers))
    # 0.07 * 100 is 7.000000000000001 and 0.29 * 100 is 28.999999999999996: a rate must admit the count it was made from.
    allowed = math.floor(fpr * len(nonmembers) + 1e-9)
    tail = (1 - CONFIDENCE) / 4
    # Least and largest number of non-members above the quantile of the rate, but for 2.5 % of cases.
    least, most = (int(stats.binom.ppf(share, len(nonmembers), fpr)) for share in (tail, 1 - tail))
    # The true threshold lies not above the score of non-member number `least`, and not below that of the one after `most`. Where
    # non-members are tied with number `least`, it may be that score itself, which names no member that is tied with them.
    found, largest = int(true[false <= allowed].max()), int(true[false <= most].max())
    fewest = int(true[false < least].max()) if least else 0
    low, high = _exact(fewest, len(members), tail).low, _exact(largest, len(members), tail).high
    return Estimate(found / len(members), low, high)


def binomial_interval(successes: int, trials: int) -> Estimate:
    """The rate ``successes / trials`` and its exact 95 % interval, of Clopper and Pearson 1934; 0 <= successes <= trials."""
    if not 0 <= successes <= trials or trials < 1:
        raise ValueError(f"{successes} successes in {trials} trials")
    return _exact(successes, trials)


def clustered_interval(shares: Sequence[float], trials: int) -> Estimate:
    """The mean of shares that clusters of trials have, and an interval for it that lets trials of one cluster depend on each other.

    It is the exact interval, of Clopper and Pearson, of so many independent trials as would tell as much as the clusters do,

        n = m (1 - m) / (s^2 / k) * (t(N - 1) / t(k - 1))^2,  at most N,

    with m the mean and s^2 the variance of the k shares, N trials in all, and t(v) the 97.5 % quantile of Student's t. Where all
    shares are equal, s^2 = 0 does not show how far trials depend on each other. Then n is N by convention of surveys (Parker), and
    the interval is that of N independent trials.

    Where a few clusters fail as a whole and none of these may have been drawn, it is too short, as every interval of a variance is,
    but less so than Student's: of 24 rows with 97 % of the cells right on average it held 86 % instead of 95 %, Student's 76 %.

    Args:
        shares: One per cluster, two or more, in [0, 1]; clusters are of one size.
        trials: N, at least as many as clusters.

    Returns:
        The mean with its 95 % interval within [0, 1], which an interval of Student's t leaves where nearly all trials succeed.

    Source: Korn and Graubard, "Confidence intervals for proportions with small expected number of positive counts estimated from
    survey data", Survey Methodology 24, 1998; n = N as in Parker et al., "National Center for Health Statistics data presentation
    standards for proportions", 2017.
    """
    from scipy.special import stdtrit

    clusters = len(shares)
    if clusters < 2 or trials < clusters or not all(0 <= share <= 1 for share in shares):
        raise ValueError(
            f"{clusters} shares of {trials} trials; allowed: two shares or more, from 0 to 1, of a trial or more each"
        )
    mean = math.fsum(shares) / clusters
    variance = math.fsum((share - mean) ** 2 for share in shares) / (clusters - 1)
    effective = float(trials)
    if variance > 0:
        level = (1 + CONFIDENCE) / 2
        fewer = float(stdtrit(trials - 1, level) / stdtrit(clusters - 1, level)) ** 2
        effective = min(mean * (1 - mean) * clusters / variance * fewer, effective)
    return _exact(mean * effective, effective)._replace(value=mean)


@functools.lru_cache(maxsize=4096)
def _exact(successes: float, trials: float, tail: float = (1 - CONFIDENCE) / 2) -> Estimate:
    """The interval of Clopper and Pearson, for numbers that need not be whole; ``tail`` is the error on each side."""
    from scipy import stats

    successes, trials = float(successes), float(trials)  # SciPy cannot take whole numbers beyond 64 bits
    failures = trials - successes
    # binomtest(...).proportion_ci is the same, many times slower: it searches for the roots.
    low = float(stats.beta.ppf(tail, successes, failures + 1)) if successes else 0.0
    high = float(stats.beta.ppf(1 - tail, successes + 1, failures)) if failures else 1.0
    return Estimate(successes / trials, low, high)


def _counts(members: Floats, nonmembers: Floats) -> tuple[Floats, Floats]:
    """False and true positives for thresholds from above all scores down to the smallest."""
    thresholds = np.unique(np.concatenate([members, nonmembers]))[::-1]
    at_least: list[Any] = [
        len(scores) - np.searchsorted(np.sort(scores), thresholds, "left") for scores in (nonmembers, members)
    ]
    false, true = (np.concatenate([[0.0], counts.astype(np.float64)]) for counts in at_least)
    return false, true


def _placements(members: Floats, nonmembers: Floats) -> tuple[Floats, Floats]:
    """Per member, the share of non-members below it; per non-member, the share of members above it. Ties count one half."""
    above = _share_below(members, nonmembers)
    return above, 1 - _share_below(nonmembers, members)


def _share_below(scores: Floats, others: Floats) -> Floats:
    ordered = np.sort(others)
    left, right = (np.searchsorted(ordered, scores, side) for side in ("left", "right"))
    return (left + right) / (2.0 * len(others))


def _checked(members: Tensor, nonmembers: Tensor) -> tuple[Floats, Floats]:
    checked: list[Floats] = []
    for name, scores in (("members", members), ("nonmembers", nonmembers)):
        if scores.ndim != 1 or not len(scores):
            raise ValueError(f"{name} has shape {tuple(scores.shape)}; expected at least one score, in one dimension")
        if scores.isnan().any():
            raise ValueError(f"{name} holds NaN, which has no order")
        checked.append(scores.detach().cpu().double().numpy())
    return checked[0], checked[1]
