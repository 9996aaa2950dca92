"""DP-SGD with planted bugs: each keeps the account of the correct one, and protects less."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from defenses.base import Training
from defenses.random_draws import generator_for
from defenses.registry import DEFENSES
from defenses.training.accounting import epsilon_spent, recorded_steps
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
class SameBatch(DPSGD):
    """Batches of a fixed order, the same in every round, in place of Poisson samples."""

    def protect_training(self, training: Training, generator: torch.Generator) -> Training:
        """Return the set-up with the bug."""
        return _in_order(super().protect_training(training, generator), training.loader, generator_for("one order"))


@dataclass(frozen=True, repr=False)
class ShuffledBatches(DPSGD):
    """Shuffled batches of a fixed size in place of Poisson samples, whose amplification is accounted."""

    def protect_training(self, training: Training, generator: torch.Generator) -> Training:
        """Return the set-up with the bug."""
        return _in_order(super().protect_training(training, generator), training.loader, generator)


def _in_order(protected: Training, loader: DataLoader[Any], generator: torch.Generator) -> Training:
    batches = DataLoader(
        loader.dataset, batch_size=loader.batch_size, shuffle=True, generator=generator, collate_fn=loader.collate_fn
    )
    return replace(protected, loader=batches)


@dataclass(frozen=True, repr=False)
class ShortAccount(DPSGD):
    """One step is left out of the account, and of the steps for which the noise is chosen."""

    def privacy(self, *states: Mapping[str, Any]) -> dict[str, float]:
        """Return the budget of all recorded steps but one."""
        steps = [list(entry) for state in states for entry in recorded_steps(state)]
        if steps:
            steps[-1][2] -= 1
        spent = epsilon_spent({"accountant": {"steps": [one for one in steps if one[2]]}}, self.target_delta)
        return {"epsilon": spent, "delta": self.target_delta}

    def _noise_multiplier(self, state: dict[str, Any], sample_rate: float, steps: int) -> float:
        return super()._noise_multiplier(state, sample_rate, max(1, steps - 1))


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


@dataclass(frozen=True, repr=False)
class ClearStatistics(DPSGD):
    """Running mean and variance of the model's inputs travel with the update, without noise."""

    def extended(self, model: nn.Module, generator: torch.Generator) -> nn.Module:
        """Return the model behind a layer that keeps the statistics."""
        return nn.Sequential(RunningStatistics(), model)


class RunningStatistics(nn.Module):
    """Running mean and variance of the pixels of a batch, as BatchNorm keeps them; its inputs pass unchanged."""

    momentum: ClassVar[float] = 0.1

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("running_mean", torch.zeros(()))
        self.register_buffer("running_var", torch.ones(()))

    def forward(self, images: Tensor) -> Tensor:
        """Return images (B, C, H, W), and in train mode move the statistics."""
        if self.training and images.numel() > 1:
            with torch.no_grad():
                for kept, new in ((self.running_mean, images.mean()), (self.running_var, images.var())):
                    kept += self.momentum * (new - kept)
        return images


BROKEN = (
    *(
        HalfNoise,
        BareLayer,
        SkippedClip,
        PrivateDivisor,
        SameBatch,
        ShuffledBatches,
        ShortAccount,
        ReusedNoise,
        ClearNumber,
    ),
    ClearStatistics,
)


def register() -> None:
    """Make the broken defences known to configurations of this process; they are in no catalogue."""
    DEFENSES.add({kind.__name__: kind for kind in BROKEN if kind.__name__ not in DEFENSES})
