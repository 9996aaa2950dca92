"""Memory of a training step from shapes alone: a run that fits no machine is refused at once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from clients.data.card import DataCard
from clients.data.images import ImageDataset
from clients.models.fits import TooLargeError, is_usual
from clients.process.machine import memory_of_machine
from simulations.experiment.experiment import Experiment
from simulations.forecast.dry_run import StepMemory, measure, size_text
from simulations.forecast.memory_needs import check_needs, needs_of
from simulations.settings.errors import ConfigError


def check_outline(experiment: Experiment, data: ImageDataset, there: int | None = None) -> None:
    """Refuse a model or images that this machine cannot hold, before the model is built.

    ``there`` is the machine's memory in bytes, by default as reported by the system. The ``ConfigError`` names settings to lower.
    """
    if is_usual(data.input_shape, experiment.width, getattr(experiment, "depth", 0)):
        return
    step = outlined_step(experiment, data)
    if step is None:
        return
    machine = memory_of_machine() if there is None else there
    height, width = data.input_shape[1:]
    if step.peak(1) > machine:
        raise ConfigError(
            f"image-size is {experiment.image_size}, model is {experiment.model!r}: on images of {height}x{width} it has "
            f"{step.parameters:,} parameters, and a training step on a single image needs about {size_text(step.peak(1))}; this "
            f"machine has {size_text(machine)} in all. Lower image-size, or choose another model or width"
        )
    # The least that the run takes: one client after the other in one process. What it will really take is checked later.
    check_needs(needs_of(experiment, data, step, 1, in_process=True), machine)


class _LinearAttention(TorchFunctionMode):
    """Attention as processors compute it, without a matrix of all pairs of tokens, which the meta device would make."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        given = dict(zip(("query", "key", "value"), args, strict=False)) | dict(kwargs or {})
        if func is not F.scaled_dot_product_attention:
            return func(*args, **(kwargs or {}))
        return given["query"] + given["key"].mean() + given["value"].mean()


def outlined_step(experiment: Experiment, data: ImageDataset) -> StepMemory | None:
    """Sizes of a step of the run's model without a defence, by torch's meta device; None where the model needs real numbers."""
    plan = experiment.plan(card=DataCard.of(data))
    try:
        with torch.device("meta"), _LinearAttention():
            return measure(plan)
    except TooLargeError as error:
        raise ConfigError(str(error)) from error
    except Exception:
        # Of models that read their own numbers while they are built, and of those that are refused elsewhere.
        return None
