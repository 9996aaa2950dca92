"""What each step of DP-SGD has and records: its Poisson sample, noise, clipping norm, and entry in the account."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from defenses.base import Loss
from defenses.checks import SMALLEST
from defenses.training.accounting import record_step
from defenses.training.adaptive_clipping import AdaptiveNorm, raised_noise
from defenses.training.example_gradients import forget
from defenses.training.quiet_import import opacus_module

NORM, SCHEDULE = "max_grad_norm", "schedule"
"""Keys of a training state: the adaptive norm of the next step; and [steps so far, epoch of the next step]."""


@dataclass(frozen=True)
class DecaySchedule:
    """Noise and norm that fall by a factor with each epoch; an epoch is 1 / (sample rate) steps.

    Attributes:
        noise_decay: Factor of the noise multiplier, in (0, 1].
        clip_decay: Factor of the norm, in (0, 1].
        epoch_steps: Steps of an epoch.
        total_steps: Of the whole training. Further steps are as the last one: no number of steps leads to less noise.
    """

    noise_decay: float
    clip_decay: float
    epoch_steps: int
    total_steps: int

    @property
    def constant(self) -> bool:
        """Whether all epochs are alike."""
        return self.noise_decay == self.clip_decay == 1

    def epoch(self, done: int) -> int:
        """The epoch, from 0, of the step after ``done`` ones."""
        return min(done, max(0, self.total_steps - 1)) // self.epoch_steps

    def levels(self) -> tuple[tuple[float, int], ...]:
        """(factor of the noise, number of steps) of each epoch, up to ``total_steps``; the last one may be short."""
        starts = range(0, self.total_steps, self.epoch_steps)
        return tuple(
            (self.noise_decay**at, min(self.epoch_steps, self.total_steps - start)) for at, start in enumerate(starts)
        )


@dataclass
class StepSettings:
    """The settings of an optimizer of Opacus from step to step.

    Attributes:
        state: The training state, which is updated with each step.
        noise_multiplier: Of the account, in the first epoch.
        max_grad_norm: Of the first step.
        rate: Probability of an example per step.
        sensitivity: Of a step's sum, in norms.
        schedule: Of noise and norm.
        adaptive: The adaptive norm; None without one, and in probes, which release no count.
        probe: A probe has the noise and norm of the training's next step, and changes neither.
    """

    state: dict[str, Any]
    noise_multiplier: float
    max_grad_norm: float
    rate: float
    sensitivity: int
    schedule: DecaySchedule
    adaptive: AdaptiveNorm | None
    probe: bool

    @property
    def noise(self) -> float:
        """The noise multiplier of the next step in the account."""
        return self.noise_multiplier * self.schedule.noise_decay**self._epoch

    @property
    def norm(self) -> float:
        """The clipping norm of the next step."""
        norm = float(self.state.get(NORM, self.max_grad_norm))
        return max(norm * self.schedule.clip_decay**self._epoch, min(norm, SMALLEST))

    @property
    def _epoch(self) -> int:
        return int(self.state.get(SCHEDULE, (0, 0))[1])

    def prepare(self, optimizer: Any) -> None:
        """Give the optimizer what its next step needs."""
        optimizer.max_grad_norm = self.norm
        noise = self.noise
        optimizer.noise_multiplier = raised_noise(noise, self.adaptive.count_noise) if self.adaptive else noise

    def made(self, optimizer: Any) -> None:
        """Record a step, whose gradients are clipped and have their noise, and prepare the next one."""
        record_step(self.state, self.noise / self.sensitivity, self.rate)
        if self.probe:
            return
        if self.adaptive:
            self.state[NORM] = self.adaptive.move(self.noise)
        if not self.schedule.constant:
            done = int(self.state.get(SCHEDULE, (0, 0))[0]) + 1
            self.state[SCHEDULE] = [done, self.schedule.epoch(done)]
        self.prepare(optimizer)


@dataclass(frozen=True)
class Sampling:
    """Sampling of an epoch.

    Attributes:
        steps: Steps of an epoch.
        rate: Probability of an example per step.
        divisor: Of the sum of a step's gradients.
        sensitivity: Of this sum, in clipping norms.
    """

    steps: int
    rate: float
    divisor: float
    sensitivity: int


def poisson_loader(loader: DataLoader[Any], sampling: Sampling, generator: torch.Generator) -> DataLoader[Any]:
    """Batches of an epoch, each example in each of them with the probability of ``sampling``."""
    dataset = loader.dataset
    sampler = opacus_module("utils.uniform_sampler").UniformWithReplacementSampler(
        num_samples=len(dataset),  # type: ignore[arg-type]
        sample_rate=sampling.rate,
        generator=generator,
        steps=sampling.steps,
    )
    return DataLoader(
        dataset,
        batch_sampler=sampler,
        collate_fn=functools.partial(_collate_or_empty, loader.collate_fn, dataset[0]),
        num_workers=loader.num_workers,
        pin_memory=loader.pin_memory,
        generator=generator,
    )


def _collate_or_empty(collate: Callable[[list[Any]], Any], example: Any, examples: list[Any]) -> Any:
    return collate(examples) if examples else [part[:0] for part in collate([example])]


def safe_for_empty_batches(loss: Loss) -> Loss:
    """The same loss, and zero for no examples, whose mean is NaN; the gradient of that zero has no per-example parts to add."""

    def safe(model: nn.Module, images: Tensor, targets: Tensor) -> Tensor:
        forget(model)
        if len(images):
            return loss(model, images, targets)
        zero = torch.zeros((), device=images.device, requires_grad=True)
        # At the time of backward, because zero_grad may come between the loss and it.
        zero.register_hook(lambda _: _set_no_examples(model))  # type: ignore[no-untyped-call]
        return zero

    return safe


def _set_no_examples(model: nn.Module) -> None:
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.grad = torch.zeros_like(parameter)  # what ghost clipping adds up
            parameter.grad_sample = parameter.new_zeros((0, *parameter.shape))  # type: ignore[attr-defined]
