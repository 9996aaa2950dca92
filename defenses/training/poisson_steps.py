"""The Poisson samples of the steps of DP-SGD, which may be empty."""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from defenses.tensors import Loss
from defenses.training.quiet_import import opacus_module


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


def safe_for_empty_batches(loss: Loss, begin: Callable[[], None]) -> Loss:
    """The same loss, and zero for no examples, whose mean is NaN; the gradient of that zero has no per-example parts to add.

    ``begin`` is called at the start of the backward pass of that zero.
    """

    def safe(model: nn.Module, images: Tensor, targets: Tensor) -> Tensor:
        if len(images):
            return loss(model, images, targets)
        zero = torch.zeros((), device=images.device, requires_grad=True)
        # At the time of backward, because zero_grad may come between the loss and it.
        zero.register_hook(lambda _: _set_no_examples(model, begin))  # type: ignore[no-untyped-call]
        return zero

    return safe


def _set_no_examples(model: nn.Module, begin: Callable[[], None]) -> None:
    begin()
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.grad = torch.zeros_like(parameter)  # what ghost clipping adds up
            parameter.grad_sample = parameter.new_zeros((0, *parameter.shape))  # type: ignore[attr-defined]
