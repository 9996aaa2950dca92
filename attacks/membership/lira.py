"""Membership inference by a likelihood ratio for each record (LiRA), offline."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor, nn

from attacks.membership.likelihood import LikelihoodAttack, ShadowedRecords
from attacks.membership.rules import SURE, GaussianRule, estimate_prior, pooled_variance
from defenses.checks import choice_field, require


@dataclass(frozen=True, repr=False)
class LiRA(LikelihoodAttack):
    """Score a record by how far its confidence lies above its confidence under shadow models that were trained without it.

    The offline attack: shadow models are trained before the records in question are known. The signal is the logit-scaled
    confidence in the true class. Confidences of one record under models without it are Gaussian; the score orders records as the
    tail probability of that Gaussian.

    Differs from the paper: each model judges a record once, as it is. The paper also averages over augmented copies of the record.

    Attributes:
        num_shadows: Shadow models.
        num_members: Training records of each; 0: half of the auxiliary data. The attack is strongest if this number is near a
            client's, because models memorise smaller training sets better.
        variance: "each": mean and variance of each record over the shadow models, which needs many of these. "fixed": the mean of
            each record and one variance for all records. "shrunk": mean and variance of each record, both shrunk towards a
            conjugate prior that auxiliary records give (as BaVarIA does; the prior of this version is estimated by moments).
    """

    source = "Carlini et al. 2022, section VI (offline); variance='shrunk': Brännvall 2026 (BaVarIA), Smyth 2004, section 6.2"

    variance: str = choice_field("shrunk", ("shrunk", "fixed", "each"))

    def __post_init__(self) -> None:
        super().__post_init__()
        enough = self.num_shadows > 1 or self.variance == "fixed"
        require(enough, self, "num_shadows", "2 or more, or 1 with variance='fixed'")

    def choose(self, records: ShadowedRecords) -> dict[str, float]:
        """The prior over a record's mean and variance, as the arguments of ``GaussianRule``."""
        if self.variance == "shrunk":
            return estimate_prior(records.confidences, records.outside)._asdict()
        spread = pooled_variance(records.confidences, records.outside)
        return {
            "mean": 0.0,
            "mean_weight": 0.0,
            "variance": spread,
            "variance_weight": SURE if self.variance == "fixed" else 0.0,
        }

    def held_out_scores(
        self, records: ShadowedRecords, choices: Mapping[str, float], own: Tensor, references: Tensor, outside: Tensor
    ) -> Tensor:
        """Scores (N,) by the same rule as of a client's records."""
        scores: Tensor = GaussianRule(**choices)(own, references, outside)
        return scores

    def rule(self, records: ShadowedRecords, choices: Mapping[str, float], model: nn.Module) -> GaussianRule:
        """The same rule for every client."""
        return GaussianRule(**choices)
