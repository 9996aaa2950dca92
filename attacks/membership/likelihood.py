"""Membership inference by likelihood ratios against shadow models: what these attacks share, and LiRA and RMIA, both offline."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, Self

import torch
from torch import Tensor, nn

from attacks.base import Knowledge, learned_field
from attacks.local_model import local_model
from attacks.membership.loss_threshold import Membership, Rule, confidence_of, predict
from attacks.membership.rules import SURE, GaussianRule, PairwiseRule, estimate_prior, log_ratio, pooled_variance
from attacks.membership.shadow_models import ShadowAttack, area, shown, true_classes
from attacks.observations import ClientUpdate
from defenses.checks import algorithm, require
from defenses.tensors import Numbers

CORRECTIONS = tuple(tenth / 10 for tenth in range(11))
"""Values of a that the server tries."""
USUAL_CORRECTION = 0.3
"""The value of a with one shadow model, on which none can be tried; the authors' value for images."""


@dataclass(frozen=True)
class ShadowedRecords:
    """Auxiliary records under all shadow models.

    Attributes:
        models: S shadow models, in eval mode.
        images: Records (A, C, H, W), normalised, as a model in use sees them.
        classes: (A,) on the CPU.
        confidences: (S, A) logit-scaled confidence in the true class, float64 on the CPU.
        outside: (S, A), bool: the shadow model was not trained on the record.
    """

    models: tuple[nn.Module, ...]
    images: Tensor
    classes: Tensor
    confidences: Tensor
    outside: Tensor

    def held_out(self) -> Sequence[tuple[Tensor, Tensor, Tensor, Tensor]]:
        """For each shadow model: its confidences (N,), those of the others (S - 1, N), their ``outside``, and the members (N,).

        Records that no other shadow model was trained without are left out, and shadow models without members or others among them.
        """
        splits = []
        for at in range(len(self.models)):
            rest = torch.arange(len(self.models)) != at
            usable = self.outside[rest].any(0)
            members = ~self.outside[at, usable]
            if members.any() and not members.all():
                others = self.confidences[rest][:, usable], self.outside[rest][:, usable]
                splits.append((self.confidences[at, usable], *others, members))
        return splits


@dataclass(frozen=True)
class FittedLikelihood:
    """The result of ``LikelihoodAttack.fit``.

    Attributes:
        records: Auxiliary records under the shadow models.
        choices: What the attack has chosen by the shadow models, by name.
        shadow_auc: Mean AUC over the shadow models, each attacked with the others as references; None where none can be attacked.
    """

    records: ShadowedRecords
    choices: Mapping[str, float]
    shadow_auc: float | None


@algorithm
class LikelihoodAttack(ShadowAttack, quick={"num_shadows": 4}):
    """Base of attacks that compare a record's confidence under the client's model with that under models without the record.

    A shadow model is trained as by a client, under the same defences, on random auxiliary records. The client applies the test to
    records that the server never sees, and so receives the shadow models with it.
    """

    learned: FittedLikelihood = learned_field()

    def fit(self, knowledge: Knowledge, generator: torch.Generator) -> Self:
        """Train the shadow models and judge all auxiliary records by them."""
        shadows = list(self.shadows(knowledge, generator))
        classes = true_classes(knowledge)
        # Shown to all shadow models in the same way.
        images = shown(knowledge, torch.arange(len(classes)), shadows[0].seed)
        confidences = torch.stack([confidence_of(predict(shadow.model, images), classes) for shadow in shadows])
        outside = torch.ones(confidences.shape, dtype=torch.bool)
        for at, shadow in enumerate(shadows):
            outside[at, shadow.members] = False
        models = tuple(trained.model.requires_grad_(False) for trained in shadows)
        records = ShadowedRecords(models, images, classes, confidences, outside)
        choices = self.choose(records)
        return replace(self, learned=FittedLikelihood(records, choices, self.mean_area(records, choices)))

    def mean_area(self, records: ShadowedRecords, choices: Mapping[str, float]) -> float | None:
        """Mean AUC over the shadow models, each attacked with the others as references; None where none can be attacked."""
        areas = []
        for own, references, outside, members in records.held_out():
            scores = self.held_out_scores(choices, own, references, outside)
            areas.append(area(scores[members], scores[~members]))
        return sum(areas) / len(areas) if areas else None

    def attack_one(self, observation: ClientUpdate, generator: torch.Generator) -> Membership:
        """Make the test from the client's own model and the shadow models; deterministic after ``fit``."""
        known, model = self.learned, local_model(observation)
        diagnostics = {} if known.shadow_auc is None else {"shadow-auc": known.shadow_auc}
        rule = self.rule(known.records, known.choices, model)
        return Membership(model, None, diagnostics, rule=rule, references=known.records.models)

    def choose(self, records: ShadowedRecords) -> Numbers:
        """What the attack estimates or chooses from the auxiliary records, by name."""
        raise NotImplementedError

    def held_out_scores(self, choices: Mapping[str, float], own: Tensor, references: Tensor, outside: Tensor) -> Tensor:
        """Scores (N,) that order the records of one ``ShadowedRecords.held_out``."""
        raise NotImplementedError

    def rule(self, records: ShadowedRecords, choices: Mapping[str, float], model: nn.Module) -> Rule:
        """The rule that scores records by their confidences under the client's ``model`` and under the shadow models."""
        raise NotImplementedError


@algorithm
class LiRA(LikelihoodAttack):
    """Score a record by how far its confidence lies above its confidence under shadow models that were trained without it.

    The offline attack: shadow models are trained before the records in question are known. The signal is the logit-scaled
    confidence in the true class. Confidences of one record under models without it are Gaussian; the score orders records as the
    tail probability of that Gaussian.

    Differs from the paper: each model judges a record once, as it is. The paper also averages over augmented copies of the record.

    Attributes:
        variance: "each": mean and variance of each record over the shadow models, which needs many of these. "fixed": the mean of
            each record and one variance for all records. "shrunk": mean and variance of each record, both shrunk towards a
            conjugate prior that auxiliary records give (as BaVarIA does; the prior of this version is estimated by moments).
    """

    source = "Carlini et al. 2022, section VI (offline); variance='shrunk': Brännvall 2026 (BaVarIA), Smyth 2004, section 6.2"

    variance: Literal["shrunk", "fixed", "each"] = "shrunk"

    def __post_init__(self) -> None:
        super().__post_init__()
        enough = self.num_shadows > 1 or self.variance == "fixed"
        require(enough, self, "num_shadows", "2 or more, or 1 with variance='fixed'")

    def choose(self, records: ShadowedRecords) -> Numbers:
        """The prior over a record's mean and variance, as the arguments of ``GaussianRule``."""
        if self.variance == "shrunk":
            return estimate_prior(records.confidences, records.outside)._asdict()
        return {
            "mean": 0.0,
            "mean_weight": 0.0,
            "variance": pooled_variance(records.confidences, records.outside),
            "variance_weight": SURE if self.variance == "fixed" else 0.0,
        }

    def held_out_scores(self, choices: Mapping[str, float], own: Tensor, references: Tensor, outside: Tensor) -> Tensor:
        """Scores (N,) by the same rule as of a client's records."""
        scores: Tensor = GaussianRule(**choices)(own, references, outside)
        return scores

    def rule(self, records: ShadowedRecords, choices: Mapping[str, float], model: nn.Module) -> GaussianRule:
        """The same rule for every client."""
        return GaussianRule(**choices)


@algorithm
class RMIA(LikelihoodAttack):
    """Score a record by the share of population records that it dominates in a pairwise likelihood ratio.

    Pr(x | model) is the probability of the true class, Pr(x) its mean over models with and without x. The offline attack has models
    without x alone, and approximates Pr(x | models with x) by a Pr(x | models without x) + 1 - a. Population records are the
    auxiliary records, each judged by the shadow models that were trained without it. Ties between records are broken by the
    record's own ratio.

    a is that of ``CORRECTIONS`` with the highest mean AUC over the shadow models, each attacked with the others as references; a
    single shadow model takes ``USUAL_CORRECTION``.

    Differs from the paper: each model judges a record once, as it is. The paper also averages over augmented copies of the record.
    """

    source = "Zarifzadeh, Liu, Shokri 2024, section 3 and offline RMIA"

    def choose(self, records: ShadowedRecords) -> Numbers:
        """The value of a."""
        areas = {correction: self.mean_area(records, {"correction": correction}) for correction in CORRECTIONS}
        known = {correction: auc for correction, auc in areas.items() if auc is not None}
        return {"correction": max(known, key=lambda correction: known[correction], default=USUAL_CORRECTION)}

    def held_out_scores(self, choices: Mapping[str, float], own: Tensor, references: Tensor, outside: Tensor) -> Tensor:
        """Ratios (N,), which order the records of one model as the shares of dominated records do."""
        return log_ratio(own, references, choices["correction"], outside)

    def rule(self, records: ShadowedRecords, choices: Mapping[str, float], model: nn.Module) -> PairwiseRule:
        """The rule with the ratios of population records under the client's model."""
        usable, correction = records.outside.any(0), choices["correction"]
        own = confidence_of(predict(model, records.images), records.classes)[usable]
        ratios = log_ratio(own, records.confidences[:, usable], correction, records.outside[:, usable])
        return PairwiseRule(ratios, correction)
