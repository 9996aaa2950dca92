"""Inference of a second attribute from features that are sent to be answered: the forward attack of delta protection."""

import math
from typing import Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from attacks.base import Knowledge, learned_field
from attacks.guesses import Attributes
from attacks.observations import AttackError
from attacks.queries.base import Query
from attacks.queries.training import LearnedNetwork, LearnedQueryAttack, Trained
from defenses.checks import Architecture, Several, Steps, algorithm
from defenses.random_draws import seed_of
from defenses.tensors import Numbers


@algorithm
class AttributeInference(
    LearnedQueryAttack[Attributes], guesses="attributes", quick={"iterations": 12, "batch_size": 8}
):
    """Classify the sensitive attribute by a network trained on features of auxiliary images with a known attribute.

    The paper's "static" adversary is trained on unprotected features and sees protected features only in the attack.
    "retrained" trains on features protected by the clients' own algorithm, with new draws at every step. Judge a defence by the
    retrained adversary.

    Diagnostics: ``holdout_accuracy`` on held-out features of the kind seen in training, and ``holdout_majority``, the accuracy of
    always predicting the most frequent value. If the first is not above the second, the network is no evidence about the defence.

    Attributes:
        architecture: "split": the server half's, with new weights. "tuned": the same, starting from the server half's own weights
            except for its last layer. "full": a whole network that takes the features as its image.
        iterations: See ``LearnedQueryAttack``; the paper trains for 100 to 250 epochs.
    """

    source = "the forward attack of ADP (autoencoder delta protection); its adversary is static, retraining is ours"
    threat = (
        "features of queries; the client half; the defences' algorithm and what they have learned; auxiliary images like the "
        "clients', with the sensitive attribute"
    )

    architecture: Architecture = "split"
    training: Trained = "retrained"
    iterations: Steps = 1000
    batch_size: Several = 32
    learned: LearnedNetwork = learned_field()

    def fit(self, knowledge: Knowledge, generator: torch.Generator) -> Self:
        """Train the classifier."""
        hidden = sensitive_of(knowledge)

        def build(_: Tensor) -> nn.Module:
            seed = seed_of(generator, 31)
            if knowledge.adversary is None:
                raise AttackError("no adversary can be built, because clients send no features in this run")
            return knowledge.adversary(self.architecture, int(hidden.max()) + 1, seed)

        return self.taught(
            knowledge, generator, truth=hidden, build=build, sample=2, loss=F.cross_entropy, judge=judged
        )

    def attack_one(self, observation: Query, generator: torch.Generator) -> Attributes:
        """Classify the images of a query; deterministic."""
        return Attributes(self.learned(observation.features), dict(self.learned.diagnostics))

    def failed(self, observation: Query, reason: str) -> Attributes:
        """The failed guess, which is never right."""
        return Attributes(torch.full((len(observation.features), 1), math.nan), failure=reason)


def sensitive_of(knowledge: Knowledge) -> Tensor:
    """The attribute of the auxiliary examples, (N,) on the CPU."""
    hidden = knowledge.sensitive
    if hidden is None:
        raise AttackError("the auxiliary data have no sensitive attribute")
    if bool((hidden == hidden[0]).all()):
        raise AttackError("all auxiliary examples have the same sensitive attribute")
    return hidden.cpu()


def judged(logits: Tensor, truth: Tensor, learned_from: Tensor) -> Numbers:
    """Accuracy on what was held out, and that of answering with the most frequent value among the others."""
    return {
        "holdout_accuracy": float((logits.argmax(1) == truth).float().mean()),
        "holdout_majority": float((truth == learned_from.mode().values).float().mean()),
    }
