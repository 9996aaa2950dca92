"""Memory of a run: what this machine cannot hold is refused before anything starts."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from clients.data.card import DataCard
from clients.data.images import ImageDataset, StoredImages
from clients.models.library import TooLargeError, is_usual
from clients.process.machine import memory_of_machine
from clients.task.auxiliary import Auxiliary
from clients.task.task import FLOAT_BYTES
from clients.training.step_cost import measure_step
from simulations.experiment.experiment import Experiment
from simulations.settings.errors import ConfigError

GIB = 2**30
PROCESS = 480 * 2**20
"""Bytes that a process of ours has with torch, Flower and our modules, its part of shared ones included (PSS; 360 to 580 MiB)."""
RUNTIME = 600 * 2**20
"""Bytes of Flower's and Ray's own processes together, likewise."""
ATTACK_STEPS = 3
"""An attack step differentiates a gradient: it keeps about so many times what a training step does."""
MOST_KEPT = 32
"""Clients whose protected images a worker keeps."""


Peak = Callable[[int], float]
"""Bytes at the peak of a training step without a defence, of the images of its batch."""


def check_shares(experiment: Experiment, data: ImageDataset) -> None:
    """Raise ``ConfigError`` where all images of a client, or of all clients, are needed at once and exceed image-memory."""
    limit, size = experiment.image_memory * GIB, share_bytes(experiment, data)
    if experiment.trains_on_server and size * experiment.num_clients > limit:
        raise ConfigError(
            f"image-memory is {experiment.image_memory:g}, and the server holds the images of all {experiment.num_clients} "
            f"clients, {size * experiment.num_clients / GIB:.1f} GiB as floats; raise it, or lower train-limit"
        )
    if (key := experiment.needs_whole_share) and size > limit:
        raise ConfigError(
            f"{key}: all images of a client are {size / GIB:.1f} GiB, and image-memory is {experiment.image_memory:g}; "
            f"set {key} = '', or raise image-memory"
        )


def check_outline(experiment: Experiment, data: ImageDataset) -> None:
    """Refuse a model or images of unusual size that this machine cannot hold, before the model is built.

    Sizes come from torch's meta device, and the run is the smallest one: one client after the other in one process. Models that
    need real numbers while they are built are passed over.
    """
    if is_usual(data.input_shape, experiment.width, getattr(experiment, "depth", 0)):
        return
    try:
        with torch.device("meta"), _LinearAttention():
            peak = measured_peak(experiment, data)
    except TooLargeError as error:
        raise ConfigError(str(error)) from error
    except Exception:  # or of models that are refused elsewhere
        return
    check_fits(experiment, data, peak, workers=0)


def check_run(experiment: Experiment, workers: int) -> float:
    """Measure a training step of a run that passed all other checks; the bytes that the run needs, as ``check_fits`` says."""
    data = experiment.plan().load_data()
    return check_fits(experiment, data, measured_peak(experiment, data), workers)


def check_fits(experiment: Experiment, data: ImageDataset, peak: Peak, workers: int) -> float:
    """Estimate the bytes that a run needs; ``ConfigError``, with settings to lower, where this machine has less.

    ``workers`` are client processes at the same time; 0: clients answer in the server's process.
    """
    needed, machine = required_bytes(experiment, data, peak, workers), memory_of_machine()
    if needed > machine:
        raise ConfigError(
            f"memory: the run needs about {size_text(needed)}, and this machine has {size_text(machine)} in all. Lower batch-size, "
            "image-size, width, attack-workers, train-limit or image-memory, choose another model, give clients more CPUs each "
            "(--cpus-per-client), or run it --in-process"
        )
    return needed


def required_bytes(experiment: Experiment, data: ImageDataset, peak: Peak, workers: int) -> float:
    """Estimate what all processes of a run hold at once: programs, images, training and attacks."""
    plan, sides = experiment.plan(), max(workers, 1)
    attackers, on_server = experiment.attackers, experiment.trains_on_server
    processes = 1 + attackers + (workers + 1 if workers else 0)  # the command that waits has imported torch, too
    share = share_bytes(experiment, data)
    once = any(pipeline.once for pipeline in experiment.pipelines) and not plan.augments
    kept = share * min(experiment.num_clients, MOST_KEPT) if once and share <= experiment.image_memory * GIB else 0
    parts = (part.images for part in (data.train, data.test))
    stored = sum(math.prod(images.shape) for images in parts if not isinstance(images, StoredImages))
    return (
        processes * (PROCESS + stored)
        + (RUNTIME if workers else 0)
        + sides * kept
        + attackers * Auxiliary(plan).size()
        + (share * experiment.num_clients if on_server else 0)
        + (1 if on_server else sides) * peak(experiment.batch_size)
        + max(attackers, bool(experiment.attacked_rounds))
        * ATTACK_STEPS
        * peak(max(one.size for one in experiment.rungs))
    )


def shares(experiment: Experiment, data: ImageDataset) -> tuple[int, int, int]:
    """Number of the server's examples, and about that of a client's training and test examples in an even partition."""
    held = len(Auxiliary(experiment.plan()).held_out(data.train.strata()))
    return held, (len(data.train) - held) // experiment.num_clients, len(data.test) // experiment.num_clients


def share_bytes(experiment: Experiment, data: ImageDataset) -> int:
    """Bytes of a client's training images as floats."""
    return shares(experiment, data)[1] * math.prod(data.input_shape) * FLOAT_BYTES


def measured_peak(experiment: Experiment, data: ImageDataset) -> Peak:
    """Run a forward and a backward pass on two and on three images, without a defence."""
    modules, forward = experiment.whole_model(experiment.plan(card=DataCard.of(data)))
    shape, peaks = data.input_shape, list[int]()
    for batch in (2, 3):  # BatchNorm needs two.
        images = (torch.arange(numbers := batch * math.prod(shape)) / numbers).reshape(batch, *shape)
        peaks.append(measure_step(lambda images=images: forward(images), modules, trained=True).peak_bytes)  # type: ignore[misc]
    each = max(peaks[1] - peaks[0], 0)
    fixed = max(peaks[0] - 2 * each, 0)
    return lambda batch: fixed + batch * each


class _LinearAttention(TorchFunctionMode):
    """Attention as processors compute it, without a matrix of all pairs of tokens, which the meta device would make."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        given = dict(zip(("query", "key", "value"), args, strict=False)) | dict(kwargs or {})
        if func is not F.scaled_dot_product_attention:
            return func(*args, **(kwargs or {}))
        return given["query"] + given["key"].mean() + given["value"].mean()


def size_text(size: float) -> str:
    """Bytes in words."""
    return f"{size / GIB:.1f} GiB" if size >= GIB else f"{size / 2**20:.0f} MiB"
