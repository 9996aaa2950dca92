"""Inference of a second attribute from features that are sent to be answered: the forward attack of delta protection."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from attacks.attributes.auxiliary import judged, sensitive_of
from attacks.base import Knowledge
from attacks.guesses import Attributes
from attacks.observations import AttackError
from attacks.queries.base import Query, QueryAttack
from attacks.queries.training import RETRAINED, Learned, Lesson, Subject, learned_by
from defenses.checks import choice_field

ARCHITECTURES = ("split", "tuned", "full")
"""The server half's architecture with new weights; the same, starting from the server half's own weights except for its last layer;
a whole network that takes the features as its image."""


@dataclass(frozen=True, repr=False)
class AttributeInference(QueryAttack[Attributes]):
    """A classifier of the sensitive attribute, trained on features of auxiliary images whose attribute the server knows.

    The "static" adversary of the paper is trained on unprotected features and meets protected ones only when it attacks. It says
    how well a defence hides the attribute from somebody who does not know of it. The server does: "retrained" learns from features
    that the clients' own algorithm has protected, drawn afresh at every step, and is what a defence has to be judged by.

    One auxiliary example in eight is held out. Diagnostics: ``holdout_accuracy`` on features of the kind that it was trained on,
    and ``holdout_majority``, that of answering with the most frequent value. Where the first is not above the second, the network
    learned nothing and is no evidence about the defence.

    Attributes:
        architecture: One of ``ARCHITECTURES``.
        training: "static" or "retrained".
        iterations: Steps of Adam; the learning rate falls to zero along a half cosine. The paper trains for 100 to 250 epochs.
        batch_size: Auxiliary images per step; also the group that a defence mixes.
        learning_rate: The largest.
        learned: Set by ``fit``.
    """

    source: ClassVar[str] = (
        "the forward attack of ADP (autoencoder delta protection); its adversary is static, retraining is ours"
    )
    threat: ClassVar[str] = (
        "features of queries, or of test images in split learning; the client half; the defences' algorithm and what they have "
        "learned; auxiliary images like the clients', with the sensitive attribute"
    )
    needs_auxiliary: ClassVar[bool] = True
    infers_attributes: ClassVar[bool] = True
    effort: ClassVar[Mapping[str, str]] = {"iterations": "training_iterations"}
    quick: ClassVar[Mapping[str, Any]] = {"iterations": 12, "batch_size": 8}

    architecture: str = choice_field("split", ARCHITECTURES)
    training: str = RETRAINED
    iterations: int = 1000
    batch_size: int = 32
    learning_rate: float = 1e-3
    learned: Learned | None = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        # Batch normalisation cannot train on one example.
        self.lesson.check(smallest_batch=2)

    @property
    def lesson(self) -> Lesson:
        """How it is trained."""
        return Lesson(self.training, self.iterations, self.batch_size, self.learning_rate)

    @property
    def knows_defenses(self) -> bool:
        """Only where it is retrained: the static adversary is one and the same for all pipelines."""
        return self.training == RETRAINED

    def aware(self) -> Self:
        """Retrained, with the same effort."""
        return replace(self, training=RETRAINED, learned=None)

    def fit(self, knowledge: Knowledge, generator: torch.Generator) -> Self:
        """Trains the classifier.

        Raises:
            AttackError: With fewer than 16 auxiliary examples, without their attribute or with one value of it only, where clients
                send no features, or when the training diverges.
        """
        hidden = sensitive_of(knowledge)

        def build(_: Tensor) -> nn.Module:
            seed = int(torch.randint(1 << 31, (), generator=generator))
            if knowledge.adversary is None:
                raise AttackError("there is nothing that builds an adversary for these features")
            return knowledge.adversary(self.architecture, int(hidden.max()) + 1, seed)

        subject = Subject(hidden, build, sample=2, loss=F.cross_entropy, judge=judged)
        return replace(self, learned=self.lesson.teach(subject, knowledge, generator))

    def attack_one(self, observation: Query, generator: torch.Generator) -> Attributes:
        """Classifies the images of a query; nothing is random.

        Raises:
            AttackError: Before ``fit``, or when the features have another shape than those of the auxiliary images.
        """
        learned = learned_by(self, self.learned)
        return Attributes(learned(observation.features), dict(learned.diagnostics))

    def failed(self, observation: Query, reason: str) -> Attributes:
        """A guess that is never right."""
        return Attributes(torch.full((len(observation.features), 1), math.nan), failure=reason)
