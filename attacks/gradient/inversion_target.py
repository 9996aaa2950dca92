"""What a gradient inversion knows about an observation before it starts: gradient, labels, learning rate and starting images."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor, nn

from attacks.base import Attack
from attacks.gradient.costs import COSTS, Cost
from attacks.gradient.labels import estimate_learning_rate, infer_observed_labels
from attacks.gradient.trial_gradients.batch_statistics import plausible, sent_statistics
from attacks.gradient.trial_gradients.matching import Statistics, attackable, count_classes
from attacks.guesses import Reconstruction
from attacks.normalisation import normalise
from attacks.observations import AttackError, ClientUpdate
from defenses.tensors import Numbers, Update


@dataclass(frozen=True)
class Victim:
    """A private copy of the global model, and the number of its logits."""

    model: nn.Module
    num_classes: int

    @classmethod
    def of(cls, observation: ClientUpdate) -> Victim:
        """The model that the client of ``observation`` trained, in the mode in which it did."""
        model = attackable(observation.model, observation.train_mode)
        like = next(model.parameters(), torch.zeros(0))
        return cls(model, count_classes(model, observation.input_shape, like.detach()))


@dataclass(frozen=True)
class Target:
    """One observation, ready to be attacked.

    Attributes:
        index: Its position among the observations.
        observation: With a learning rate in any case.
        gradient: What is matched.
        labels: (restarts, b) int64, or None where they are unknowns.
        starts: (restarts, D), see ``attacks.gradient.trial_gradients.matching``.
        batch_shape: (b, C, H, W) of the dummy images.
        unrolled: The client's local training is unrolled.
        statistics: Of the client's batch, where they are matched too; else empty.
        diagnostics: What is known before the attack.
    """

    index: int
    observation: ClientUpdate
    gradient: Update
    labels: Tensor | None
    starts: Tensor
    batch_shape: tuple[int, int, int, int]
    unrolled: bool
    statistics: Statistics
    diagnostics: Numbers

    @property
    def alike(self) -> tuple[object, ...]:
        """Equal for targets that one call can attack: same model, same unknowns, same objective."""
        seen = self.observation
        training = (seen.learning_rate, seen.momentum, seen.nesterov, seen.weight_decay)
        model = (id(seen.model), seen.train_mode, seen.input_shape, seen.mean, seen.std, self.starts.shape)
        batches = (seen.num_examples, seen.batch_size, seen.local_steps)
        return (*model, (batches, training) if self.unrolled else (), *self.statistics, plausible(self.statistics))


class TargetPreparation(Attack[ClientUpdate, Reconstruction]):
    """What ``GradientInversion`` reads of an observation before its search; the fields are described there."""

    costs: ClassVar[Mapping[str, Cost]] = COSTS
    batch_norm_prior: float
    cost: str
    init: str
    labels: str
    max_images: int
    max_unrolled_steps: int
    restarts: int

    @property
    def needs_learning_rate(self) -> bool:
        """True of a cost that compares lengths; the cosine distance compares directions alone."""
        return not self.costs[self.cost].scale_free

    @property
    def more_starts(self) -> tuple[float, ...]:
        """Where unknowns start that a subclass has behind the pixels."""
        return ()

    def observed_gradient(self, observation: ClientUpdate) -> Update:
        """What the dummy images' gradient is compared with; the observation's learning rate is known, or estimated, by now."""
        return observation.gradient()

    def prepare(self, index: int, observation: ClientUpdate, victim: Victim, generator: torch.Generator) -> Target:
        """Reads an observation as the attack wants it; draws its restarts' starts."""
        channels = observation.input_shape[0]
        if observation.num_examples < 1:
            raise AttackError(f"the update covers {observation.num_examples} examples; at least 1 is needed")
        if not len(observation.mean) == len(observation.std) == channels:
            raise AttackError(f"{len(observation.mean)} means and {len(observation.std)} stds for {channels} channels")
        known, estimate = self._with_learning_rate(observation)
        gradient = self.observed_gradient(known)
        if not any(bool(value.any()) for value in gradient.values()):
            raise AttackError("the gradient is zero in every parameter, so there is nothing to match")
        labels = self._labels(known, gradient, victim.num_classes)
        few = 1 < known.local_steps <= self.max_unrolled_steps and known.num_examples <= self.max_images
        # An estimate of 0 is none: nothing can be simulated with it.
        unrolled = few and known.batch_size >= 1 and estimate != 0
        if labels is not None and unrolled and not self._knows_labels(known):
            labels = labels.sort().values
        statistics = self._statistics(known)
        # Entries that were sent as zero, or that the attack takes for pruned.
        zeros = sum(int(((v == 0).cpu() | (known.update[name] == 0).cpu()).sum()) for name, v in gradient.items())
        starts = [self._start(known, victim.num_classes, generator) for _ in range(self.restarts)]
        return Target(
            index,
            known,
            gradient,
            None if labels is None else self._dealt(labels, unrolled, generator),
            torch.stack(starts).to(next(iter(gradient.values()))),
            (self.count_images(known), *known.input_shape),
            unrolled,
            statistics,
            {
                "labels_inferred": float(not self._knows_labels(known)),
                "masked_share": zeros / sum(v.numel() for v in gradient.values()),
                **({"learning_rate": estimate} if estimate else {}),
                **({"unrolled": float(unrolled)} if known.local_steps > 1 else {}),
                **({"batch_norm_layers": float(len(statistics))} if self.batch_norm_prior else {}),
            },
        )

    def count_images(self, observation: ClientUpdate) -> int:
        """Dummy images of one trial."""
        return min(observation.num_examples, self.max_images)

    def matches_statistics(self, local_steps: int) -> bool:
        """Whether the attack matches the batch statistics of an update of so many steps, where they were sent.

        Those of several steps are a weighted mean, and matching it makes guesses worse.
        """
        return bool(self.batch_norm_prior) and local_steps == 1

    def _failure(self, observation: ClientUpdate, reason: str, diagnostics: Numbers | None = None) -> Reconstruction:
        return Reconstruction.grey(self.count_images(observation), observation.input_shape, reason, diagnostics)

    def _knows_labels(self, observation: ClientUpdate) -> bool:
        return self.labels == "known" or (self.labels == "auto" and observation.labels is not None)

    def _with_learning_rate(self, observation: ClientUpdate) -> tuple[ClientUpdate, float | None]:
        """The observation with a learning rate, and its estimate if there is one."""
        if observation.learning_rate is not None:
            return observation, None
        try:
            known = observation.labels if self._knows_labels(observation) else None
            rate = _estimate(observation) if known is None else estimate_learning_rate(observation, known)
            return replace(observation, learning_rate=rate), rate
        except AttackError as error:
            # Any rate will do for such a cost, unless the weight decay is to be subtracted.
            if not self.costs[self.cost].scale_free or observation.weight_decay:
                raise AttackError(
                    f"the server does not know the learning rate, and the estimate failed: {error}"
                ) from error
            return replace(observation, learning_rate=1.0), 0.0

    def _statistics(self, observation: ClientUpdate) -> Statistics:
        """Of the client's batch, where they are wanted and were sent."""
        if not self.matches_statistics(observation.local_steps):
            return {}
        try:
            return sent_statistics(observation)
        except AttackError:
            # A prior is extra: without it the attack is the ordinary one.
            return {}

    def _labels(self, observation: ClientUpdate, gradient: Update, num_classes: int) -> Tensor | None:
        """One per dummy image, or None where they are unknowns."""
        count, labels = self.count_images(observation), None
        if self._knows_labels(observation):
            labels = observation.labels
            if labels is None:
                raise AttackError("the server does not know the labels; use labels='infer' or labels='joint'")
            if labels.shape != (observation.num_examples,):
                raise AttackError(f"{tuple(labels.shape)} labels for {observation.num_examples} examples")
            if labels.min() < 0 or labels.max() >= num_classes:
                raise AttackError(f"labels {labels.tolist()[:8]} do not fit a model of {num_classes} classes")
        elif self.labels in ("auto", "infer"):
            labels = infer_observed_labels(observation, gradient)
        if labels is not None and count < len(labels):
            # The middles of ``count`` equal parts: frequent classes stay frequent.
            labels = labels.sort().values[(torch.arange(count) * 2 + 1) * len(labels) // (2 * count)]
        return labels

    def _dealt(self, labels: Tensor, unrolled: bool, generator: torch.Generator) -> Tensor:
        """The labels of each restart: in another order where it matters which of them met in a batch."""
        if not unrolled:
            return labels.expand(self.restarts, -1)
        deals = [torch.randperm(len(labels), generator=generator) for _ in range(self.restarts - 1)]
        return torch.stack([labels, *(labels[deal] for deal in deals)])

    def _start(self, observation: ClientUpdate, num_classes: int, generator: torch.Generator) -> Tensor:
        """One start: pixels, label logits if they are unknown, what else is sought; float32, whatever the model's type."""
        shape = (self.count_images(observation), *observation.input_shape)
        black = self.init == "black"
        pixels = normalise(torch.zeros(shape), observation) if black else torch.randn(shape, generator=generator)
        logits = torch.randn(shape[0], num_classes, generator=generator) if self.labels == "joint" else torch.zeros(0)
        return torch.cat([pixels.flatten(), logits.flatten(), torch.tensor(self.more_starts)])


def _estimate(observation: ClientUpdate) -> float:
    """The learning rate by inferred labels, whose counts depend on it in turn: a few rounds, as a rule two, settle both."""
    rate, before = 1.0, None
    for _ in range(5):
        labels = infer_observed_labels(observation, observation.gradient(rate)).sort().values
        if before is not None and torch.equal(labels, before):
            break
        rate, before = estimate_learning_rate(observation, labels), labels
    return rate
