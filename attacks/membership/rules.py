"""Decision rules that compare a record's confidence under the client's model with that under models without it, and their prior."""

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn

from attacks.observations import AttackError

SURE = 1e12
"""Pseudo-observations of a prior that no data move."""
LEAST_VARIANCE = 1e-12
"""Smallest variance of a record's confidence over shadow models; a record on which all of them agree keeps a finite score."""
GAMMA = 2.0
"""Factor by which a record must dominate a population record."""


class GaussianRule(nn.Module):
    """Offline likelihood ratio test: how far a confidence lies above those of models without the record.

    The confidence of a record under models without it is Gaussian, with a mean and a variance of the record. Both have a conjugate
    prior (normal-inverse-chi-squared), which S shadow models update. The prediction for one more model is Student's t. The score is
    the standardised residual. It orders records as the paper's tail probability does, and never rounds to 1.

    Args:
        mean: Prior mean.
        mean_weight: Pseudo-observations of the prior mean, kappa; 0: the record's own mean counts alone.
        variance: Prior variance.
        variance_weight: Degrees of freedom of the prior variance, nu; 0: the record's own variance, ``SURE``: one for all records.

    Source: Carlini et al. 2022, section VI-A and the offline attack. Gelman et al., "Bayesian Data Analysis", section 3.3.
    """

    part = "gaussian"
    """First part of the names of a sent test's tensors, as of ``PairwiseRule``."""

    def __init__(self, mean: float, mean_weight: float, variance: float, variance_weight: float) -> None:
        super().__init__()
        self.prior = nn.Buffer(torch.tensor([mean, mean_weight, variance, variance_weight], dtype=torch.float64))

    def forward(self, own: Tensor, references: Tensor, outside: Tensor | None = None) -> Tensor:
        """Scores (N,) of records.

        Args:
            own: (N,) confidences under the client's model.
            references: (S, N) confidences under the shadow models.
            outside: (S, N), bool: the shadow model was not trained on the record, true at least once for each; None: always.
        """
        held = _mask(references, outside)
        mean, mean_weight, variance, variance_weight = self.prior.to(references)
        count = held.sum(0)
        average = (references * held).sum(0) / count
        weight = mean_weight + count
        middle = (mean_weight * mean + count * average) / weight
        squares = ((references - average).square() * held).sum(0)
        between = mean_weight * count / weight * (average - mean).square()
        spread = (variance_weight * variance + squares + between) / (variance_weight + count)
        residual: Tensor = (own - middle) / (spread * (1 + 1 / weight)).clamp(min=LEAST_VARIANCE).sqrt()
        return residual


class PairwiseRule(nn.Module):
    """Share of population records that a record dominates: Pr_z[(Pr(x | model) / Pr(x)) / (Pr(z | model) / Pr(z)) >= ``GAMMA``].

    Ties, of which a small population makes many, are broken by the record's own ratio.

    Args:
        ratios: (Z,) log(Pr(z | model) / Pr(z)) of population records under the client's model.
        correction: a, from 0 to 1; see ``log_ratio``.

    Source: Zarifzadeh, Liu, Shokri 2024, section 3.
    """

    part = "pairwise"

    def __init__(self, ratios: Tensor, correction: float) -> None:
        super().__init__()
        self.ratios = nn.Buffer(ratios.detach().double().sort().values)
        self.correction = nn.Buffer(torch.tensor(correction, dtype=torch.float64))

    def forward(self, own: Tensor, references: Tensor, outside: Tensor | None = None) -> Tensor:
        """Scores (N,) in [0, 1 + 1 / Z]; arguments as of ``GaussianRule.forward``."""
        ratio = log_ratio(own, references, float(self.correction), outside)
        dominated = torch.searchsorted(self.ratios.to(own), ratio - math.log(GAMMA), right=True)
        return (dominated + torch.sigmoid(ratio)) / len(self.ratios)


def log_ratio(own: Tensor, references: Tensor, correction: float, outside: Tensor | None = None) -> Tensor:
    """log(Pr(x | model) / Pr(x)), (N,); Pr(x | model) is the probability of the true class. Arguments: ``GaussianRule.forward``.

    By the offline approximation Pr(x | models with x) = a Pr(x | models without x) + 1 - a with a = ``correction``,

        Pr(x) = ((1 + a) Pr(x | models without x) + 1 - a) / 2.
    """
    held = _mask(references, outside)
    known = nn.functional.logsigmoid(references).masked_fill(held == 0, -math.inf)
    likely = known.logsumexp(0) - held.sum(0).log()
    rest = (1 - correction) / 2
    known = likely + math.log((1 + correction) / 2)
    if rest:
        known = torch.logaddexp(known, torch.full_like(known, math.log(rest)))
    return nn.functional.logsigmoid(own) - known


def _mask(references: Tensor, outside: Tensor | None) -> Tensor:
    return torch.ones_like(references) if outside is None else outside.to(references)


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

    Of (S, A) confidences of A records under S models; ``outside`` (S, A), bool: the model was not trained on the record.

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
