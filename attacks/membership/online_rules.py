"""Online tests of membership: shadow models trained with and without each record, and the rules that compare the two."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from attacks.membership.rules import SURE, GaussianRule, estimate_prior, log_ratio, pooled_variance
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
        num_members: Training records of each shadow model; 0: as many as the client's model was trained on.
        seed: Seed of the choice of records and of the training.
    """

    rule: str
    num_shadows: int
    num_members: int
    seed: int

    def members_of_each(self, trained: int) -> int:
        """Training records of each shadow model, for a client whose model was trained on ``trained`` records."""
        return self.num_members or trained

    def assigned(self, count: int, trained: int) -> Tensor:
        """Which shadow models train on which records, (S, N) bool.

        Each model has exactly ``members_of_each`` records. Each record is in ``FEWEST_WITH`` models or more, and outside of as
        many. The numbers of models of two records differ by one at most.

        Args:
            count: N, the records in question.
            trained: How many of them the client's model was trained on.

        Raises:
            AttackError: When there are fewer than two records, or too few shadow models for that.
        """
        models, generator = self.num_shadows, torch.Generator().manual_seed(self.seed)
        if count < 2:
            raise AttackError(f"an online test needs two records, and has {count}")
        members = self.members_of_each(trained)
        if models < (least := least_shadows(members, count)):
            raise AttackError(
                f"num_shadows is {models}; allowed: {least} or more, so that of shadow models on {members} of the {count} records "
                f"in question {FEWEST_WITH} have each record and {FEWEST_WITH} do not"
            )
        # As many places as all models have together: a model of the fewest records so far takes each.
        fewest, more = divmod(models * members, count)
        order = torch.randperm(count, generator=generator).tolist()
        inside, sizes = torch.zeros(models, count, dtype=torch.bool), torch.zeros(models)
        for at, record in enumerate(order):
            many = fewest + ((at + 1) * more // count - at * more // count)
            chosen = (sizes + torch.rand(models, generator=generator) / 2).topk(many, largest=False).indices
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


def least_shadows(members: int, count: int) -> int:
    """Fewest shadow models on ``members`` of ``count`` records each, of which ``FEWEST_WITH`` have each record and as many do not.

    Raises:
        AttackError: When a model would have all records, or none.
    """
    if not 0 < members < count:
        raise AttackError(f"num_members is {members}; allowed: 1 to {count - 1}, as {count} records are in question")
    return math.ceil(FEWEST_WITH * count / min(members, count - members))


def online_scores(rule: str, own: Tensor, references: Tensor, inside: Tensor) -> Tensor:
    """Scores (N,) by one of ``RULES``; arguments as of ``OnlineTest.scores``.

    "ratio" is log(Pr(x | model) / Pr(x)). Pr(x) is half the mean probability under models with the record, plus half that under
    models without it, however many there are of each. RMIA counts the population records whose ratio is smaller by a factor. That
    share rises with the ratio, whatever population and factor are.

    Source: Carlini et al. 2022, algorithm 1; "ratio": Zarifzadeh et al. 2024, section 3 and online RMIA.
    """
    if rule == "ratio":
        with_it, without = (log_ratio(own, references, 1.0, held) for held in (inside, ~inside))
        # Both are log(Pr(x | model) / mean): the mean of the two means is in their denominators.
        return math.log(2) - torch.logaddexp(-with_it, -without)
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
