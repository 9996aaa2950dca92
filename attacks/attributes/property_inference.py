"""Inference of a sensitive attribute from an update: passive property inference."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from attacks.attributes.inference import judged, sensitive_of
from attacks.attributes.update_sketch import FEWEST, StandardiseSketches, UpdateReader, made_by, simulated, sketched
from attacks.base import Attack, Knowledge, learned_field
from attacks.guesses import Attributes
from attacks.observations import AttackError, ClientUpdate
from attacks.queries.training import RETRAINED, TRAININGS, split_rows, train_network
from attacks.refinement.restoration import HOLDOUT
from defenses.checks import algorithm, choice_field, examples_field, steps_field, width_field
from defenses.random_draws import drawing_from

HIDDEN = 64
"""Width of the hidden layer."""
WEIGHT_DECAY = 1e-3
"""Factor of the squared weights in the loss."""


def majority(values: Tensor) -> Tensor:
    """The property of an update: the value (B,) that most of its images have; of equally frequent ones the smallest."""
    return values.bincount().argmax()


@algorithm
class PropertyInference(
    Attack[ClientUpdate, Attributes],
    needs_auxiliary=True,
    guesses="attributes",
    effort={"iterations": "training_iterations"},
    quick={"updates": 32, "size": 32, "iterations": 20},
):
    """Classify the sensitive attribute behind an update by a network trained on updates of the server's own images.

    The attack infers one value of a one-step update (``majority``). The server simulates updates of the attacked global model, on
    as many images, by the clients' own code: "static" without the clients' defences, "retrained" with them, with new draws for
    every update. Judge a defence by "retrained". The classifier has one hidden layer and its input is ``UpdateSketch``.

    One auxiliary image in eight is held out, and one simulated update in eight uses only held-out images. Diagnostics:
    ``holdout_accuracy`` on such updates, and ``holdout_majority``, the accuracy of always predicting the most frequent value. If
    the first is not above the second, the classifier is no evidence about the defence.

    Attributes:
        training: "static" or "retrained".
        updates: Simulated updates, those of held-out images among them.
        size: Length of the projection of a tensor; smaller tensors are kept as they are.
        iterations: Steps of Adam on 64 sketches; the learning rate falls from 1e-3 to zero along a half cosine.
    """

    source = (
        "Melis, Song, De Cristofaro, Shmatikov, Exploiting Unintended Feature Leakage in Collaborative Learning, S&P 2019, section "
        "4.2 (passive); there random forests read raw gradients"
    )
    threat = (
        "global model, one update, the client's training procedure and its defences' algorithm; auxiliary images like the "
        "clients', with the sensitive attribute"
    )

    training: str = choice_field(RETRAINED, TRAININGS)
    updates: int = examples_field(800, FEWEST)
    size: int = width_field(1024)
    iterations: int = steps_field(400)
    learned: UpdateReader | None = learned_field()

    @property
    def knows_defenses(self) -> bool:
        """Whether the classifier is retrained."""
        return self.training == RETRAINED

    def aware(self) -> Self:
        """The retrained classifier, with the same effort."""
        return replace(self, training=RETRAINED, learned=None)

    def fit(self, knowledge: Knowledge, generator: torch.Generator) -> Self:
        """Simulate updates and train the classifier."""
        hidden = sensitive_of(knowledge)
        kept, held = split_rows(knowledge, generator)
        count = self.updates // HOLDOUT
        sketch, sketches, values = simulated(
            knowledge, kept, self.updates - count, self.size, lambda rows: majority(hidden[kept][rows]), generator
        )
        if bool((values == values[0]).all()):
            raise AttackError("all simulated updates have the same sensitive attribute")
        tests, right = sketched(
            sketch, made_by(knowledge, held, count, generator), lambda rows: majority(hidden[held][rows])
        )
        place = knowledge.auxiliary.images.device
        network = self._trained(sketches.to(place), values.to(place), int(hidden.max()) + 1, generator)
        with torch.no_grad():
            scores = judged(network(tests.to(place)).cpu(), right, values)
        return replace(self, learned=UpdateReader(network, sketch, (), scores))

    def _trained(self, sketches: Tensor, values: Tensor, num_values: int, generator: torch.Generator) -> nn.Module:
        with drawing_from(generator):
            layers = nn.Linear(sketches.shape[1], HIDDEN), nn.Linear(HIDDEN, num_values)
        network = nn.Sequential(StandardiseSketches(sketches), layers[0], nn.ReLU(), layers[1]).to(sketches.device)

        def loss(rows: Tensor) -> Tensor:
            penalty = sum((layer.weight.square().sum() for layer in layers), sketches.new_zeros(()))
            return F.cross_entropy(network(sketches[rows]), values[rows]) + WEIGHT_DECAY * penalty

        train_network(
            network, loss, torch.arange(len(sketches)), generator,
            iterations=self.iterations, batch_size=64, learning_rate=1e-3,
        )  # fmt: skip
        return network

    def attack_one(self, observation: ClientUpdate, generator: torch.Generator) -> Attributes:
        """Predict one value for the update; deterministic after ``fit``."""
        assert self.learned is not None
        return Attributes(self.learned(observation.update), dict(self.learned.diagnostics))

    def failed(self, observation: ClientUpdate, reason: str) -> Attributes:
        """The failed guess, which is never right."""
        return Attributes(torch.full((1, 1), math.nan), failure=reason)
