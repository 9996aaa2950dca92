"""What attacks share that learn from features of auxiliary images: the hold-out, the features, steps and scores."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, Self

import torch
from torch import Tensor, nn

from attacks.base import Knowledge
from attacks.descent import step_down
from attacks.observations import AttackError
from attacks.queries.base import Guess, QueryAttack
from attacks.refinement.restoration import HOLDOUT
from attacks.sender import Sender, key_of
from defenses.base import DefenseError
from defenses.random_draws import drawing_from
from defenses.tensors import Numbers, Shape, TensorMap

MIN_EXAMPLES = 2 * HOLDOUT
STATIC, RETRAINED = "static", "retrained"
Trained = Literal["static", "retrained"]
"""On unprotected features, as if there were no defences; or on what the clients' own algorithm makes of them."""
AT_ONCE = 64
"""Images whose features are computed together."""
MOST_KEPT = 2**30
"""Bytes of features that are kept, at most, where the client half would make the same ones at every step."""


@dataclass(frozen=True)
class LearnedNetwork:
    """A network after its training.

    Attributes:
        network: Features (B, C', H', W') -> predictions (B, ...); in eval mode, where it learned.
        shape: (C', H', W').
        diagnostics: Scores on the held-out examples.
    """

    network: nn.Module
    shape: Shape
    diagnostics: Numbers

    def __call__(self, features: Tensor) -> Tensor:
        """Predictions for the features of a query: (B, ...), where the network is."""
        if tuple(features.shape[1:]) != self.shape:
            raise AttackError(f"features have shape {tuple(features.shape[1:])}; allowed: {self.shape}, as in training")
        known = features.detach().to(next(self.network.parameters(), features).device)
        with torch.no_grad():
            return in_batches(lambda rows: self.network(known[rows]), torch.arange(len(known)))


class LearnedQueryAttack(QueryAttack[Guess], needs_auxiliary=True, effort={"iterations": "training_iterations"}):
    """Base of attacks that train a network on features of auxiliary images; one in eight is held out to judge it by.

    Attributes:
        training: "static" or "retrained".
        iterations: Steps of Adam; the learning rate falls to zero along a half cosine.
        batch_size: Auxiliary images per step; also the group that a defence mixes.
    """

    training: str
    iterations: int
    batch_size: int
    learning_rate: ClassVar[float] = 1e-3
    """The largest."""

    @property
    def knows_defenses(self) -> bool:
        """Only where it is retrained: the static adversary is one and the same for all pipelines."""
        return self.training == RETRAINED

    def aware(self) -> Self:
        """Retrained, with the same effort."""
        return replace(self, training=RETRAINED, learned=None)  # type: ignore[type-var]

    def taught(
        self,
        knowledge: Knowledge,
        generator: torch.Generator,
        *,
        truth: Tensor,
        build: Callable[[Tensor], nn.Module],
        sample: int,
        loss: Callable[[Tensor, Tensor], Tensor],
        judge: Callable[[Tensor, Tensor, Tensor], Numbers],
    ) -> Self:
        """The attack with a new network.

        Args:
            knowledge: Holds the auxiliary examples and the client half.
            generator: Generator of all draws.
            truth: (N, ...), target of each auxiliary example.
            build: A sample of features (B, C', H', W') -> a new network for such features, in train mode.
            sample: Number of features that ``build`` gets.
            loss: (predictions for a batch, targets) -> mean loss.
            judge: (predictions for held-out examples, their targets, targets of the training examples) -> scores.
        """
        sender = knowledge.require_sender()
        count = len(knowledge.auxiliary)
        if count < MIN_EXAMPLES:
            raise AttackError(
                f"{count} auxiliary examples are too few to learn from; at least {MIN_EXAMPLES} are needed"
            )
        order = torch.randperm(count, generator=generator)
        kept, held = order[count // HOLDOUT :], order[: count // HOLDOUT]
        features = features_by_row(sender, self.training, knowledge.auxiliary.images, generator)
        shown = features(kept[:sample])
        network = build(shown).to(shown.device)
        optimizer = torch.optim.Adam(network.parameters(), self.learning_rate)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, self.iterations)
        # Dropout draws globally: from a stream of its own, that the caller's state neither decides nor notices.
        with drawing_from(generator):
            network.train()
            for _ in range(self.iterations):
                rows = kept[torch.randperm(len(kept), generator=generator)[: self.batch_size]]
                value = loss(network(features(rows)), truth[rows].to(shown.device))
                if not torch.isfinite(value):
                    raise AttackError("the training diverged")
                step_down(optimizer, value, schedule)
        network.eval().requires_grad_(False)
        with torch.no_grad():
            predictions = in_batches(lambda rows: network(features(rows)).cpu(), held)
        scores = judge(predictions, truth[held].cpu(), truth[kept].cpu())
        return replace(self, learned=LearnedNetwork(network, tuple(shown.shape[1:]), scores))  # type: ignore[type-var]


def features_of(sender: Sender, training: str, images: Tensor, generator: torch.Generator) -> Tensor:
    """Features (B, ...) of clean images (B, C, H, W) in [0, 1], on the client half's device; without gradient.

    "retrained" draws every defence afresh; a defence may mix the images.
    """
    weight = next(sender.edge.parameters(), None)
    images = images if weight is None else images.to(weight.device)
    try:
        with torch.no_grad():
            return sender.features(images) if training == STATIC else sender.query(images, generator)[0]
    except DefenseError as error:
        raise AttackError(f"the defences refuse auxiliary images: {error}") from error


def features_by_row(sender: Sender, training: str, images: Tensor, generator: torch.Generator) -> TensorMap:
    """``features_of`` the images (N, C, H, W) in some rows (B,); made once where nothing is drawn and ``MOST_KEPT`` allows it.

    What is learned does not depend on which: each call takes the same from ``generator``.
    """

    def anew(rows: Tensor) -> Tensor:
        return features_of(sender, training, images[rows], generator)

    if training == RETRAINED and sender.pipeline.draws_at_inference:
        return anew
    sample = features_of(sender, training, images[:1], torch.Generator())
    if sample.numel() * sample.element_size() * len(images) > MOST_KEPT:
        return anew
    kept = in_batches(
        lambda rows: features_of(sender, training, images[rows], torch.Generator()).cpu(), torch.arange(len(images))
    )

    def known(rows: Tensor) -> Tensor:
        if training == RETRAINED:
            key_of(generator)
        return kept[rows].to(sample.device)

    return known


def in_batches(compute: TensorMap, rows: Tensor) -> Tensor:
    """``compute`` of all rows (N,), ``AT_ONCE`` at a time: its results one below the other."""
    return torch.cat([compute(some) for some in torch.split(rows, AT_ONCE)])
