"""Online tests of membership: shadow models trained with and without each record, and the rules that compare the two."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from attacks.membership.priors import estimate_prior, pooled_variance
from attacks.membership.rules import SURE, GaussianRule, log_ratio
from attacks.observations import AttackError
from defenses.checks import MOST_EXAMPLES, MOST_STARTS

RULES = ("each", "fixed", "shrunk", "ratio")
"""How an online test scores records: by three estimates of two Gaussians, or by a ratio of probabilities."""
FEWEST_WITH = 2
"""Shadow models with a record, and without it: fewer have no variance."""
NEARLY_NORMAL = 1e6
"""Degrees of freedom from which Student's t counts as Gaussian."""


@dataclass(frozen=True)
class OnlineTest:
    """Shadow models that are trained on the records in question, and a rule.

    Attributes:
        rule: One of ``RULES``.
        num_shadows: S, at least twice ``FEWEST_WITH``.
        num_members: Training records of each shadow model, about; 0: half of the records in question.
        seed: Seed of the choice of records and of the training.
    """

    rule: str
    num_shadows: int
    num_members: int
    seed: int

    def assigned(self, count: int) -> Tensor:
        """Which shadow models train on which of ``count`` records, (S, count) bool.

        Models have about as many records each. Each record is in ``FEWEST_WITH`` models or more, and outside of as many, also where
        ``num_members`` is too small for that.

        Raises:
            AttackError: With fewer than two records, or when ``num_members`` is above ``most_members``.
        """
        models, generator = self.num_shadows, torch.Generator().manual_seed(self.seed)
        if count < 2:
            raise AttackError(f"an online test needs two records, and has {count}")
        if self.num_members > (most := most_members(models, count)):
            raise AttackError(
                f"num_members is {self.num_members}, and {count} records are in question; allowed: at most {most}, because each "
                f"record is outside of {FEWEST_WITH} of {models} shadow models"
            )
        wanted = models * (self.num_members / count if self.num_members else 0.5)
        numbers = torch.floor(wanted + torch.rand(count, generator=generator, dtype=torch.float64))
        if not self.num_members:
            numbers = torch.full((count,), models // 2)
        many: list[int] = numbers.clamp(FEWEST_WITH, models - FEWEST_WITH).long().tolist()
        inside, sizes = torch.zeros(models, count, dtype=torch.bool), torch.zeros(models)
        for record in torch.randperm(count, generator=generator).tolist():
            chosen = (sizes + torch.rand(models, generator=generator) / 2).topk(many[record], largest=False).indices
            inside[chosen, record] = True
            sizes[chosen] += 1
        return inside

    def scores(self, own: Tensor, references: Tensor, inside: Tensor) -> Tensor:
        """Scores (N,) of records.

        Args:
            own: (N,) confidences under the client's model.
            references: (S, N) confidences under the shadow models.
            inside: (S, N), bool: the shadow model was trained on the record.
        """
        return online_scores(self.rule, own, references, inside)

    def to_tensor(self) -> Tensor:
        """All fields, (4,) int64."""
        return torch.tensor([RULES.index(self.rule), self.num_shadows, self.num_members, self.seed])

    @classmethod
    def of(cls, fields: Tensor) -> Self:
        """Inverse of ``to_tensor``; ``AttackError`` for numbers that no test has."""
        if fields.shape != (4,) or fields.is_floating_point():
            raise AttackError("online/settings is not four whole numbers")
        rule, num_shadows, num_members, seed = map(int, fields)
        allowed = 0 <= rule < len(RULES) and 2 * FEWEST_WITH <= num_shadows <= MOST_STARTS
        if not allowed or not 0 <= num_members <= MOST_EXAMPLES or not 0 <= seed < 2**63:
            raise AttackError(f"online/settings is {fields.tolist()}, which no online test sends")
        return cls(RULES[rule], num_shadows, num_members, seed)


def most_members(num_shadows: int, count: int) -> int:
    """Most training records of a shadow model, of ``count`` records that are each outside of ``FEWEST_WITH`` models."""
    return count * (num_shadows - FEWEST_WITH) // num_shadows


def online_scores(rule: str, own: Tensor, references: Tensor, inside: Tensor) -> Tensor:
    """Scores (N,) by one of ``RULES``; arguments as of ``OnlineTest.scores``.

    "ratio" is log(Pr(x | model) / Pr(x)), with Pr(x) the mean over all shadow models. RMIA counts the population records whose
    ratio is smaller by a factor. That share rises with the ratio, whatever population and factor are.

    Source: Carlini et al. 2022, algorithm 1; "ratio": Zarifzadeh et al. 2024, section 3 and online RMIA.
    """
    if rule == "ratio":
        return log_ratio(own, references, 1.0)
    with_it, without = (log_density(rule, own, references, held) for held in (inside, ~inside))
    return with_it - without


def log_density(rule: str, own: Tensor, references: Tensor, held: Tensor) -> Tensor:
    """Log density (N,) of each record's own confidence, given those under the models that ``held`` (S, N) marks.

    "each" and "fixed" put estimates of mean and variance into a Gaussian, as the paper does. "shrunk" has the prediction under a
    prior that all records give, Student's t.
    """
    if rule == "shrunk":
        middle, scale, freedom = GaussianRule(*estimate_prior(references, held)).prediction(references, held)
        return _student((own - middle) / scale, freedom) - scale.log()
    variance, weight = (pooled_variance(references, held), SURE) if rule == "fixed" else (1.0, 0.0)
    middle, scale, _ = GaussianRule(0, 0, variance, weight).prediction(references, held)
    # Of the estimate itself, without the error of the mean that a prediction has.
    scale = scale / (1 + 1 / held.sum(0)).sqrt()
    return _student((own - middle) / scale, torch.full_like(scale, math.inf)) - scale.log()


def _student(residual: Tensor, freedom: Tensor) -> Tensor:
    """Log density of Student's t, of a Gaussian beyond ``NEARLY_NORMAL`` degrees of freedom."""
    known = freedom.clamp(max=NEARLY_NORMAL)
    return torch.where(
        freedom > NEARLY_NORMAL,
        torch.distributions.Normal(0.0, 1.0).log_prob(residual),  # type: ignore[no-untyped-call]
        torch.distributions.StudentT(known).log_prob(residual),  # type: ignore[no-untyped-call]
    )
