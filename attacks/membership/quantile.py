"""Membership inference by quantile regression: a model of non-members' confidences, without shadow models."""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor, nn

from attacks.base import Knowledge, learned_field
from attacks.descent import step_down
from attacks.local_model import local_model
from attacks.membership.loss_threshold import Membership, MembershipAttack, confidence_of, predict
from attacks.membership.rules import QuantileRule, gaussian_loss
from attacks.membership.shadow_models import LEARNING_RATE, WEIGHT_DECAY, shown, true_classes
from attacks.observations import AttackError, ClientUpdate
from defenses.checks import MOST_SIDE, algorithm, steps_field, whole_field, width_field
from defenses.random_draws import seed_of

FEWEST = 10
"""Auxiliary records: of fewer no fifth can be held out."""
MOST_RELABELLED = 1000
HELD_OUT = 5
"""One in so many auxiliary records chooses the number of steps."""


@dataclass(frozen=True)
class Population:
    """Auxiliary records, none of which is a client's.

    Attributes:
        images: (A, C, H, W), normalised, as a model in use sees them.
        classes: (A,) on the CPU.
    """

    images: Tensor
    classes: Tensor


@algorithm
class QuantileRegression(
    MembershipAttack, needs_auxiliary=True, effort={"iterations": "training_iterations"}, quick={"iterations": 40}
):
    """Score a record by how unusual its confidence is, among those that the client's model has in non-members like it.

    For each update, one small network learns to predict mean and standard deviation of the logit-scaled confidence of the client's
    model from a record and its class, on auxiliary records. Its quantiles at any level are those of a Gaussian; the score, the
    standardised residual, orders records by the level that their confidence reaches. No shadow model is trained.

    Differs from the paper:
        - The score is the logit-scaled confidence. The paper has the logit of the true class minus the largest other logit.
        - The regression maximises a Gaussian likelihood, and has no pinball loss of a quantile.
        - The network is small, starts from random weights, and has fixed settings. The paper has large pretrained ones, and tunes
          their settings.
        - Each auxiliary record also counts under random classes (``relabelled``). These are records that the client did not train
          on, too, and teach the network the confidence that an unlikely class has.

    Attributes:
        hidden: Width of the network.
        side: Pixels along a side of the image, averaged down, that the network sees at most.
        relabelled: Random classes under which each auxiliary record counts besides its own; 0, as in the paper: none.
        iterations: Steps of Adam on all records at once, at most; a fifth of the records, held out, chooses the step.
    """

    source = "Bertran et al. 2023, section 3"
    threat = "global model, one update, auxiliary data; true classes of the records in question"

    hidden: int = width_field(64)
    side: int = whole_field(14, 1, MOST_SIDE)
    relabelled: int = whole_field(5, 0, MOST_RELABELLED)
    iterations: int = steps_field(300)
    learned: Population = learned_field()

    def fit(self, knowledge: Knowledge, generator: torch.Generator) -> Self:
        """Keep the auxiliary records, as a model in use sees them."""
        classes = true_classes(knowledge)
        if len(classes) < FEWEST:
            raise AttackError(f"{self} needs {FEWEST} auxiliary examples and has {len(classes)}")
        seed = seed_of(generator, 31)
        return replace(self, learned=Population(shown(knowledge, torch.arange(len(classes)), seed), classes))

    def attack_one(self, observation: ClientUpdate, generator: torch.Generator) -> Membership:
        """Learn how the client's own model judges non-members, and make the test."""
        model, images, classes = local_model(observation), self.learned.images, self.learned.classes
        logits = predict(model, images)
        drawn = torch.randint(logits.shape[1], (self.relabelled, len(classes)), generator=generator)
        labels = torch.cat([classes[None], drawn])
        confidences = torch.stack([confidence_of(logits, one) for one in labels])
        rule, loss = self._regress(images, labels, confidences, logits.shape[1], generator)
        return Membership(model, None, {"held-out-loss": loss}, quantile=rule)

    def _regress(
        self, images: Tensor, classes: Tensor, confidences: Tensor, num_classes: int, generator: torch.Generator
    ) -> tuple[QuantileRule, float]:
        """The rule at the step with the lowest loss on held-out records, and that loss.

        Classes (R, A) and confidences (R, A) are of A records under R classes each.
        """
        flat = QuantileRule(1, 1, 1, self.side).to(images.device).features(images)
        rule = QuantileRule(flat.shape[1], self.hidden, num_classes, self.side)
        nn.init.xavier_uniform_(rule.hidden.weight, generator=generator)
        # At first the Gaussian of all records, which needs no network: what is learned is held to that.
        for weights in (rule.hidden.bias, rule.out.weight, rule.out.bias):
            nn.init.zeros_(weights)
        order = torch.randperm(len(images), generator=generator).to(images.device)
        rule = rule.to(images.device)
        rule.standardise_as(flat)
        center, unit = confidences.mean(), confidences.std().clamp(min=1e-6)
        rule.unit.copy_(torch.stack([center, unit]))
        values, classes = ((confidences - center) / unit).to(flat), classes.to(flat.device)

        def loss_on(some: Tensor) -> Tensor:
            expected = rule.expected(flat[some].repeat(len(classes), 1), classes[:, some].flatten())
            return gaussian_loss(*expected, values[:, some].flatten())

        held, kept = order[: len(order) // HELD_OUT], order[len(order) // HELD_OUT :]
        optimizer = torch.optim.Adam(rule.parameters(), lr=LEARNING_RATE, weight_decay=WEIGHT_DECAY)
        best, least = copy.deepcopy(rule.state_dict()), float("inf")
        for step in range(self.iterations + 1):
            with torch.no_grad():
                loss = float(loss_on(held))
            if loss < least:
                best, least = copy.deepcopy(rule.state_dict()), loss
            if step < self.iterations:
                with torch.enable_grad():
                    step_down(optimizer, loss_on(kept))
        rule.load_state_dict(best)
        return rule.eval().requires_grad_(False), least
