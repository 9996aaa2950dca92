"""DP-SGD with planted bugs: each keeps the account of the correct one, and protects less."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch

from defenses.base import DEFENSES, Training
from defenses.random_draws import generator_for
from defenses.training.dp_sgd import DPSGD


@dataclass(frozen=True, repr=False)
class HalfNoise(DPSGD):
    """Half of the noise that is accounted."""

    def protect_training(self, training: Training, generator: torch.Generator) -> Training:
        """Return the set-up with the bug."""
        protected = super().protect_training(training, generator)
        optimizer: Any = protected.optimizer
        optimizer.noise_multiplier /= 2
        return protected


@dataclass(frozen=True, repr=False)
class BareLayer(DPSGD):
    """No noise on the last parameter, a bias."""

    def protect_training(self, training: Training, generator: torch.Generator) -> Training:
        """Return the set-up with the bug."""
        protected = super().protect_training(training, generator)
        optimizer: Any = protected.optimizer
        add_noise = optimizer.add_noise

        def broken() -> None:
            bare = optimizer.params[-1]
            summed = bare.summed_grad.clone()
            add_noise()
            bare.grad = summed.view_as(bare)

        optimizer.add_noise = broken
        return protected


@dataclass(frozen=True, repr=False)
class SkippedClip(DPSGD):
    """The gradient of the first parameter is added without clipping."""

    def protect_training(self, training: Training, generator: torch.Generator) -> Training:
        """Return the set-up with the bug."""
        protected = super().protect_training(training, generator)
        optimizer: Any = protected.optimizer
        clip = optimizer.clip_and_accumulate

        def broken() -> None:
            first = optimizer.params[0]
            whole = first.grad_sample.sum(0)
            clip()
            first.summed_grad = whole

        optimizer.clip_and_accumulate = broken
        return protected


@dataclass(frozen=True, repr=False)
class PrivateDivisor(DPSGD):
    """The sum is divided by n times the sample rate, which "add-or-remove" must hide."""

    def protect_training(self, training: Training, generator: torch.Generator) -> Training:
        """Return the set-up with the bug."""
        protected = super().protect_training(training, generator)
        optimizer: Any = protected.optimizer
        size: int = len(training.loader.dataset)  # type: ignore[arg-type]
        optimizer.expected_batch_size = size * (self.sample_rate or 1 / len(training.loader))
        return replace(protected, optimizer=optimizer)


@dataclass(frozen=True, repr=False)
class ReusedNoise(DPSGD):
    """Every round draws the noise of the first round again."""

    def protect_training(self, training: Training, generator: torch.Generator) -> Training:
        """Return the set-up with the bug."""
        first = training.state.get("first-draw") or int(torch.randint(1 << 62, (), generator=generator))
        protected = super().protect_training(training, generator_for("reused", first))
        protected.state["first-draw"] = first
        return protected


@dataclass(frozen=True, repr=False)
class ClearNumber(DPSGD):
    """The number of examples is reported although "add-or-remove" must hide it, as fedveil did at first."""

    def reported_examples(self, batch_size: int) -> int | None:
        """Return None, by which a client reports its true number."""
        return None


BROKEN = (HalfNoise, BareLayer, SkippedClip, PrivateDivisor, ReusedNoise, ClearNumber)


def register() -> None:
    """Make the broken defences known to configurations of this process; they are in no catalogue."""
    DEFENSES._own.update({kind.__name__: kind for kind in BROKEN if kind.__name__ not in DEFENSES})
