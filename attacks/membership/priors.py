"""The prior over a record's mean and variance of confidence, estimated from many records (empirical Bayes)."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from attacks.membership.rules import LEAST_VARIANCE, SURE
from attacks.observations import AttackError


class Prior(NamedTuple):
    """Parameters of a normal-inverse-chi-squared distribution, as ``GaussianRule`` takes them."""

    mean: float
    mean_weight: float
    variance: float
    variance_weight: float


def estimate_prior(confidences: Tensor, outside: Tensor) -> Prior:
    """Estimate the prior by moments, from records that at least two models were not trained on.

    The logarithms of the records' sample variances give prior variance and degrees of freedom (moderated variances), the spread of
    the records' means beyond their sampling error gives the weight of the prior mean.

    Args:
        confidences: (S, A) of A records under S models.
        outside: (S, A), bool: the model was not trained on the record.

    Raises:
        AttackError: When fewer than two records have at least two models without them.

    Source: Smyth, "Linear models and empirical Bayes methods for assessing differential expression in microarray experiments",
    Statistical Applications in Genetics and Molecular Biology 3(1), 2004, section 6.2.
    """
    counts = outside.sum(0)
    usable = counts >= 2
    if int(usable.sum()) < 2:
        raise AttackError(
            f"a prior needs two records with two shadow models without them, and {int(usable.sum())} are given"
        )
    held, known, counts = confidences[:, usable].double(), outside[:, usable], counts[usable].double()
    means = (held * known).sum(0) / counts
    freedom = counts - 1
    variances = (((held - means).square() * known).sum(0) / freedom).clamp(min=LEAST_VARIANCE)

    logs = variances.log() - torch.digamma(freedom / 2) + (freedom / 2).log()
    excess = float(logs.var() - torch.polygamma(1, freedom / 2).mean())
    half = inverse_trigamma(excess) if excess > 0 else math.inf
    weight = min(2 * half, SURE)
    shift = float(torch.digamma(torch.tensor(weight / 2).double())) - math.log(weight / 2)
    variance = math.exp(float(logs.mean()) + shift)

    between = float(means.var() - (variances / counts).mean())
    mean_weight = min(float(variances.mean()) / between, SURE) if between > 0 else SURE
    return Prior(float((means * counts).sum() / counts.sum()), mean_weight, max(variance, LEAST_VARIANCE), weight)


def pooled_variance(confidences: Tensor, outside: Tensor) -> float:
    """Mean variance of a record's confidence over the models without it, of the records of ``estimate_prior``; 1 without any."""
    counts = outside.sum(0).double()
    means = (confidences.double() * outside).sum(0) / counts.clamp(min=1)
    squares = ((confidences.double() - means).square() * outside).sum()
    freedom = float((counts - 1).clamp(min=0).sum())
    return max(float(squares) / freedom, LEAST_VARIANCE) if freedom else 1.0


def inverse_trigamma(value: float) -> float:
    """The y > 0 with trigamma(y) = ``value`` > 0, by Newton's method on 1 / trigamma, which is convex and nearly linear."""
    y = torch.tensor(0.5 + 1 / value, dtype=torch.float64)
    for _ in range(50):
        trigamma = torch.polygamma(1, y)
        step = trigamma * (1 - trigamma / value) / torch.polygamma(2, y)
        y = y + step
        if abs(float(step)) < 1e-8 * float(y):
            break
    return float(y)
