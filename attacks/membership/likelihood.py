"""What likelihood attacks on membership share: shadow models, and records whose membership in each of them is known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor, nn

from attacks.base import Attack, Knowledge, learned_field
from attacks.local_model import local_model
from attacks.membership.loss_threshold import Membership, Rule, confidence_of, predict
from attacks.membership.shadow_models import Shadow, area, members_field, shown, train_shadows, true_classes
from attacks.observations import ClientUpdate, TrainingUpdate
from defenses.checks import starts_field


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
        found = []
        for at in range(len(self.models)):
            rest = torch.arange(len(self.models)) != at
            usable = self.outside[rest].any(0)
            members = ~self.outside[at, usable]
            if members.any() and not members.all():
                others = self.confidences[rest][:, usable], self.outside[rest][:, usable]
                found.append((self.confidences[at, usable], *others, members))
        return found

    def confidences_under(self, model: nn.Module) -> Tensor:
        """Confidences (A,) of the records under another model."""
        return confidence_of(predict(model, self.images), self.classes)


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


@dataclass(frozen=True, repr=False)
class LikelihoodAttack(Attack[ClientUpdate, Membership]):
    """Base of attacks that compare a record's confidence under the client's model with that under models without the record.

    A shadow model is trained as by a client, under the same defences, on random auxiliary records. The client applies the test to
    records that the server never sees, and so receives the shadow models with it.

    Attributes:
        num_shadows: Shadow models.
        num_members: Training records of each; 0: half of the auxiliary data. The attack is strongest if this number is near a
            client's, because models memorise smaller training sets better.
    """

    observes = TrainingUpdate
    infers_membership = True
    needs_auxiliary = True
    threat = "global model, one update, auxiliary data, the client's training procedure; true classes of the records in question"
    trains_shadows = "server"
    quick = {"num_shadows": 4}

    num_shadows: int = starts_field(8)
    num_members: int = members_field()
    learned: FittedLikelihood | None = learned_field()

    def fit(self, knowledge: Knowledge, generator: torch.Generator) -> Self:
        """Train the shadow models and judge all auxiliary records by them."""
        shadows = list(train_shadows(self, knowledge, self.num_shadows, self.num_members, generator))
        records = judge(knowledge, shadows)
        choices = self.choose(records)
        areas = [
            area(scores[members], scores[~members])
            for own, references, outside, members in records.held_out()
            for scores in [self.held_out_scores(records, choices, own, references, outside)]
        ]
        found = sum(areas) / len(areas) if areas else None
        return replace(self, learned=FittedLikelihood(records, choices, found))

    def attack_one(self, observation: ClientUpdate, generator: torch.Generator) -> Membership:
        """Make the test from the client's own model and the shadow models; deterministic after ``fit``."""
        assert self.learned is not None
        known, model = self.learned, local_model(observation)
        diagnostics = {} if known.shadow_auc is None else {"shadow-auc": known.shadow_auc}
        rule = self.rule(known.records, known.choices, model)
        return Membership(model, None, diagnostics, rule=rule, references=known.records.models)

    def failed(self, observation: ClientUpdate, reason: str) -> Membership:
        """The failed test, which scores no record."""
        return Membership(None, failure=reason)

    def choose(self, records: ShadowedRecords) -> dict[str, float]:
        """What the attack estimates or chooses from the auxiliary records, by name."""
        raise NotImplementedError

    def held_out_scores(
        self, records: ShadowedRecords, choices: Mapping[str, float], own: Tensor, references: Tensor, outside: Tensor
    ) -> Tensor:
        """Scores (N,) that order the records of one ``ShadowedRecords.held_out``."""
        raise NotImplementedError

    def rule(self, records: ShadowedRecords, choices: Mapping[str, float], model: nn.Module) -> Rule:
        """The rule that scores records by their confidences under the client's ``model`` and under the shadow models."""
        raise NotImplementedError


def judge(knowledge: Knowledge, shadows: Sequence[Shadow]) -> ShadowedRecords:
    """All auxiliary records under all shadow models, shown to all of them in the same way."""
    classes = true_classes(knowledge)
    images = shown(knowledge, torch.arange(len(classes)), shadows[0].seed)
    confidences = torch.stack([confidence_of(predict(one.model, images), classes) for one in shadows])
    outside = torch.ones(confidences.shape, dtype=torch.bool)
    for at, one in enumerate(shadows):
        outside[at, one.members] = False
    models = tuple(one.model.requires_grad_(False) for one in shadows)
    return ShadowedRecords(models, images, classes, confidences, outside)
