"""Membership inference by pairwise likelihood ratios against population records (RMIA), offline."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor, nn

from attacks.membership.likelihood import LikelihoodAttack, ShadowedRecords
from attacks.membership.rules import PairwiseRule, log_ratio
from attacks.membership.shadow_models import area
from defenses.checks import checked_field, is_number, scale_field

CORRECTIONS = tuple(tenth / 10 for tenth in range(11))
"""Values of a that the server tries."""
USUAL_CORRECTION = 0.3
"""The value of a with one shadow model, on which none can be tried; the authors' value for images."""


@dataclass(frozen=True, repr=False)
class RMIA(LikelihoodAttack):
    """Score a record by the share of population records that it dominates in a pairwise likelihood ratio.

    Pr(x | model) is the probability of the true class, Pr(x) its mean over models with and without x. The offline attack has models
    without x alone, and approximates Pr(x | models with x) by a Pr(x | models without x) + 1 - a. Population records are the
    auxiliary records, each judged by the shadow models that were trained without it. Ties between records are broken by the
    record's own ratio.

    Differs from the paper: each model judges a record once, as it is. The paper also averages over augmented copies of the record.

    Attributes:
        num_shadows: Shadow models.
        num_members: Training records of each; 0: half of the auxiliary data. The attack is strongest if this number is near a
            client's, because models memorise smaller training sets better.
        correction: a, from 0 to 1. -1: of 0, 0.1, ... 1 the one with the highest mean AUC over the shadow models, each attacked
            with the others as references; a single shadow model takes ``USUAL_CORRECTION``.
        gamma: Factor by which a record must dominate a population record.
    """

    source = "Zarifzadeh, Liu, Shokri 2024, section 3 and offline RMIA"

    correction: float = checked_field(
        -1.0, lambda value: is_number(value) and (value == -1 or 0 <= value <= 1), "-1, or a number from 0 to 1"
    )
    gamma: float = scale_field(2.0)

    def choose(self, records: ShadowedRecords) -> dict[str, float]:
        """The value of a."""
        held_out = records.held_out()
        if self.correction != -1 or not held_out:
            return {"correction": USUAL_CORRECTION if self.correction == -1 else self.correction}

        def mean_area(correction: float) -> float:
            areas = []
            for own, references, outside, members in held_out:
                ratios = log_ratio(own, references, correction, outside)
                areas.append(area(ratios[members], ratios[~members]))
            return sum(areas) / len(areas)

        return {"correction": max(CORRECTIONS, key=mean_area)}

    def held_out_scores(
        self, records: ShadowedRecords, choices: Mapping[str, float], own: Tensor, references: Tensor, outside: Tensor
    ) -> Tensor:
        """Ratios (N,), which order the records of one model as the shares of dominated records do."""
        return log_ratio(own, references, choices["correction"], outside)

    def rule(self, records: ShadowedRecords, choices: Mapping[str, float], model: nn.Module) -> PairwiseRule:
        """The rule with the ratios of population records under the client's model."""
        usable, correction = records.outside.any(0), choices["correction"]
        own = records.confidences_under(model)[usable]
        ratios = log_ratio(own, records.confidences[:, usable], correction, records.outside[:, usable])
        return PairwiseRule(ratios, correction, self.gamma)
