"""How well scores tell members from non-members: the ROC curve, its area, and the true positives at few false ones.

All functions take two vectors of scores, higher = more likely a member, and use their order only: an increasing transformation of
all scores changes nothing. Infinite scores are fine; NaN has no order and is refused.
"""

import math
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from attacks.scoring.intervals import CONFIDENCE, Estimate, binomial_interval, exact_interval

Floats = NDArray[np.float64]


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
    hits, largest = int(true[false <= allowed].max()), int(true[false <= most].max())
    fewest = int(true[false < least].max()) if least else 0
    low, high = exact_interval(fewest, len(members), tail).low, exact_interval(largest, len(members), tail).high
    return Estimate(hits / len(members), low, high)


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
    return _share_below(members, nonmembers), 1 - _share_below(nonmembers, members)


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
