"""Membership inference by shadow models: the server repeats the client's training on data with known members."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from attacks.base import Knowledge, learned_field
from attacks.descent import step_down
from attacks.local_model import local_model
from attacks.membership.loss_threshold import (
    Membership,
    MembershipAttack,
    MembershipNetwork,
    membership_features,
    predict,
)
from attacks.normalisation import normalise
from attacks.observations import AttackError, ClientUpdate
from defenses.checks import MOST_EXAMPLES, Limit, Starts, Steps, algorithm
from defenses.random_draws import seed_of

HIDDEN = 16
"""Width of the attack network."""
LEARNING_RATE, WEIGHT_DECAY = 0.01, 0.001
"""Of Adam, the L2 coefficient on all weights."""
FEWEST = 2
"""Members, and as many non-members: fewer are no training set."""


@dataclass(frozen=True)
class Shadow:
    """One shadow model and the auxiliary records that it was trained on.

    Attributes:
        model: In eval mode.
        members: Positions (M,) of its training records among the auxiliary data.
        others: Positions (M,) of as many records that it was not trained on.
        seed: Seed of its weights and of its training.
    """

    model: nn.Module
    members: Tensor
    others: Tensor
    seed: int


@algorithm
class ShadowAttack(MembershipAttack, needs_auxiliary=True, trains_shadows=True):
    """Base of attacks whose server trains shadow models as a client trains its model, defences included, on auxiliary records.

    Attributes:
        num_shadows: Shadow models.
        num_members: Training records of each; 0: half of the auxiliary data. The attack is strongest if this number is near a
            client's, because models memorise smaller training sets better.
    """

    threat = "global model, one update, auxiliary data, the client's training procedure; true classes of the records in question"

    num_shadows: Starts = 8
    num_members: Annotated[int, Limit(FEWEST, MOST_EXAMPLES, also=0)] = 0

    def shadows(self, knowledge: Knowledge, generator: torch.Generator) -> Iterator[Shadow]:
        """Train the shadow models, each on random auxiliary records; ``AttackError`` without as many non-members as members."""
        plain, total = knowledge.auxiliary, len(knowledge.auxiliary)
        members = self.num_members or total // 2
        if total < (least := 2 * max(members, FEWEST)):
            raise AttackError(f"{self} needs {least} auxiliary examples and has {total}")
        for _ in range(self.num_shadows):
            order = torch.randperm(total, generator=generator)
            inside, outside = order[:members], order[members : 2 * members]
            seed = seed_of(generator, 31)
            yield Shadow(knowledge.train(plain.rows(inside), seed).eval(), inside, outside, seed)


def shown(knowledge: Knowledge, positions: Tensor, seed: int) -> Tensor:
    """Auxiliary images as a model in use sees them: protected if the defences act at inference, and normalised, (N, C, H, W)."""
    plain, pipeline = knowledge.auxiliary, knowledge.pipeline
    batch = plain.rows(positions)
    if pipeline.at_inference:
        batch = pipeline.protect_test(batch, ("shadow-model", seed))
    return normalise(batch.images, knowledge)


def true_classes(knowledge: Knowledge) -> Tensor:
    """Classes (N,) of the auxiliary records on the CPU, of the originals: a defence may soften what it returns."""
    return knowledge.auxiliary.targets.argmax(1).cpu()


@algorithm
class ShadowModels(
    ShadowAttack, effort={"iterations": "training_iterations"}, quick={"num_shadows": 2, "iterations": 40}
):
    """Infer membership by a network trained on shadow models, which the server trains itself on data with known members.

    Each shadow model is trained as by a client, under the same defences, on a random half of the auxiliary data; the rest are its
    non-members. One small network learns to separate the two from the outputs of all shadow models (``membership_features``).

    Differs from the paper: one attack network for all classes, with the class as an input, because auxiliary data have few
    records per class. Its inputs are the three largest log-probabilities and the logit-scaled confidence in the true class (Carlini
    et al. 2022, section VI-A) in place of all probabilities. Shadow models start from new random weights.

    Attributes:
        iterations: Steps of Adam on all records at once.
        shadow_auc: AUC on the last shadow model of a network trained on the others only; None with a single shadow model.
            Set by ``fit``; 0.5 means that the network learned nothing.
    """

    source = "Shokri et al. 2017, section V"

    num_shadows: Starts = 4
    iterations: Steps = 300
    learned: MembershipNetwork = learned_field()
    shadow_auc: float | None = learned_field()

    def fit(self, knowledge: Knowledge, generator: torch.Generator) -> Self:
        """Train the shadow models and, on their outputs, the attack network."""
        features = [_shadow_features(knowledge, shadow) for shadow in self.shadows(knowledge, generator)]
        held_out = None
        if self.num_shadows > 1:
            with torch.no_grad():
                scores = self._train(features[:-1], generator)(features[-1]).cpu()
            held_out = area(*scores.split(len(scores) // 2))
        return replace(self, learned=self._train(features, generator), shadow_auc=held_out)

    def attack_one(self, observation: ClientUpdate, generator: torch.Generator) -> Membership:
        """Make the test from the client's own model and the network; deterministic after ``fit``."""
        diagnostics = {} if self.shadow_auc is None else {"shadow-auc": self.shadow_auc}
        return Membership(local_model(observation), self.learned, diagnostics)

    def _train(self, shadows: Sequence[Tensor], generator: torch.Generator) -> MembershipNetwork:
        """A network trained on the features of some shadow models, each (2 M, F), members first."""
        features = torch.cat(list(shadows))
        labels = (
            torch.cat([torch.arange(len(shadow)) < len(shadow) // 2 for shadow in shadows]).float().to(features.device)
        )
        network = MembershipNetwork(features.shape[1], HIDDEN)
        network.mean.copy_(features.mean(0))
        # A feature that never changes stays zero.
        network.std.copy_(features.std(0).where(features.std(0) > 1e-6, 1.0))
        for layer in (network.hidden, network.out):
            nn.init.xavier_uniform_(layer.weight, generator=generator)
            nn.init.zeros_(layer.bias)
        network = network.to(features.device)
        optimizer = torch.optim.Adam(network.parameters(), lr=LEARNING_RATE, weight_decay=WEIGHT_DECAY)
        with torch.enable_grad():
            for _ in range(self.iterations):
                step_down(optimizer, F.binary_cross_entropy_with_logits(network(features), labels))
        return network.eval().requires_grad_(False)


def _shadow_features(knowledge: Knowledge, shadow: Shadow) -> Tensor:
    """Features (2 M, F) of a shadow model's members and non-members, as it would be used; members come first."""
    both = torch.cat([shadow.members, shadow.others])
    logits = predict(shadow.model, shown(knowledge, both, shadow.seed))
    return membership_features(logits, true_classes(knowledge)[both]).to(knowledge.auxiliary.images.device)


def area(members: Tensor, others: Tensor) -> float:
    """Area under the ROC curve: the share of pairs in which the member's score is higher, ties counting half."""
    from scipy.stats import mannwhitneyu  # slow to import

    return float(mannwhitneyu(members.numpy(), others.numpy()).statistic) / (len(members) * len(others))
