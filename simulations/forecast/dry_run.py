"""A dry run: everything about an experiment that can be known before anything is trained, sent or written."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from attacks.gradient.inversion import GradientInversion
from attacks.local_model import shared_tensors
from attacks.spec import stages_of
from clients.data.card import DataCard
from clients.data.images import ImageData, ImageDataset, StoredImages
from clients.task.auxiliary import Auxiliary
from clients.task.task import FLOAT_BYTES, Plan
from clients.training.step_cost import StepCost, measure_step
from defenses.pipeline import Pipeline
from simulations.experiment.experiment import Experiment
from simulations.experiment.scenario import scenario
from simulations.forecast.notices import idle_defenses
from simulations.settings.errors import ConfigError

GIB = 2**30
MOST_SECONDS = 3.0
"""A measured step on a whole batch takes no longer."""


@dataclass(frozen=True)
class Step:
    """One training step without a defence, as it was measured on this machine's CPU.

    Attributes:
        parameters: Of the model, both halves together.
        fixed_bytes: At the peak, whatever the batch.
        image_bytes: At the peak for every image of a batch.
        image_seconds: For every image.
    """

    parameters: int
    fixed_bytes: float
    image_bytes: float
    image_seconds: float

    def peak(self, batch: int) -> float:
        """Bytes at the peak of a step on so many images."""
        return self.fixed_bytes + batch * self.image_bytes


def check_memory(experiment: Experiment, data: ImageDataset) -> None:
    """Refuses what would need all images of somebody at once where these do not fit.

    Raises:
        ConfigError: With what to change.
    """
    plan, limit = experiment.plan(Pipeline()), experiment.image_memory * GIB
    if experiment.crop_padding >= min(data.input_shape[1:]):
        raise ConfigError(
            f"crop-padding is {experiment.crop_padding}; allowed: below {min(data.input_shape[1:])}, the images' side, or a "
            "crop may be black"
        )
    attacked = any(
        experiment.attacks_on(pipeline, kind) for pipeline in experiment.pipelines() for kind in experiment.kinds
    )
    if attacked and experiment.attacked_rounds():
        try:
            Auxiliary(plan).check()
        except ValueError as error:
            raise ConfigError(str(error)) from error
    size = shares(experiment, data)[0] * math.prod(data.input_shape) * FLOAT_BYTES
    if scenario(experiment.scenario).trains_on_server() and size * experiment.num_clients > limit:
        raise ConfigError(
            f"image-memory is {experiment.image_memory:g}, and the server holds the images of all {experiment.num_clients} "
            f"clients, {size * experiment.num_clients / GIB:.1f} GiB as floats; raise it, or lower train-limit"
        )
    if (key := scenario(experiment.scenario).needs_whole_share(experiment)) and size > limit:
        raise ConfigError(
            f"{key}: all images of a client are {size / GIB:.1f} GiB, and image-memory is {experiment.image_memory:g}; "
            f"set {key} = '', or raise image-memory"
        )


def shares(experiment: Experiment, data: ImageDataset) -> tuple[int, int]:
    """Training and test examples of a client, about: an even partition is assumed."""
    held = len(Auxiliary(experiment.plan(Pipeline())).held_out(data.train.strata()))
    clients = experiment.num_clients
    return (len(data.train) - held) // clients, len(data.test) // clients


def describe(experiment: Experiment, workers: int, step: Step, needs: object) -> Iterator[str]:
    """What a run would do and cost, line by line; the settings have passed their checks.

    Args:
        experiment: With a number of clients.
        workers: Client processes that run at the same time.
        step: As ``measure_step_of`` found it.
        needs: What is told of memory.
    """
    plan = experiment.plan(Pipeline())
    data = plan.load_data()
    plan = replace(plan, card=DataCard.of(data))
    yield f"data:       {experiment.dataset}, {_told('train', data.train)}; {_told('test', data.test)}"
    yield from (f"warning:    {note}" for note in data.notes)
    train, test = shares(experiment, data)
    yield f"clients:    {experiment.num_clients}, about {train} training and {test} test examples each"
    yield (
        f"model:      {experiment.model}, {step.parameters:,} parameters; a training step on {experiment.batch_size} images needs "
        f"about {size_told(step.peak(experiment.batch_size))}, a probe of {experiment.probe_images} "
        f"{size_told(step.peak(experiment.probe_images))}, without a defence"
    )
    yield f"memory:     {needs}"
    names = [str(pipeline) or "no defence" for pipeline in experiment.pipelines()]
    yield f"pipelines:  {len(names)}: {'; '.join(names)}"
    yield from (f"warning:    {why}" for why in idle_defenses(experiment, plan.data_card()))
    yield f"messages:   about {count_messages(experiment, train, test):,}"
    images = train * experiment.local_epochs
    if experiment.local_steps:
        images = experiment.local_steps * min(experiment.batch_size, train)
    alone = scenario(experiment.scenario).trains_on_server()
    at_once = 1 if alone else workers
    seconds = images * step.image_seconds * experiment.rounds * len(names) * experiment.num_clients / at_once
    by = "the server alone" if alone else f"{workers} clients at a time"
    yield (
        f"training:   {experiment.rounds} rounds of each pipeline, about {_duration(seconds)} on this machine's CPU by {by}, "
        "besides messages and defences"
    )
    yield from _attacks(experiment, step)


def measure_step_of(experiment: Experiment, data: ImageDataset) -> Step:
    """``measure`` of an experiment without a defence."""
    return measure(replace(experiment.plan(Pipeline()), card=DataCard.of(data)))


def measure(plan: Plan) -> Step:
    """Runs a forward and a backward pass on two and on three random images.

    Args:
        plan: Without a defence; its ``card`` is known.
    """
    modules, forward = scenario(plan.scenario).whole_model(plan)
    generator = torch.Generator().manual_seed(0)
    costs: list[StepCost] = []
    for count in (2, 3):  # BatchNorm needs two.
        images = torch.rand(count, *plan.data_card().input_shape, generator=generator)
        costs.append(measure_step(lambda images=images: forward(images), modules, trained=True))  # type: ignore[misc]
    seconds, count = _timed(forward, images), 3
    if seconds * plan.batch_size / 3 < MOST_SECONDS:  # small steps are mostly overhead: the real size tells more
        count = max(plan.batch_size, 2)
        seconds = _timed(forward, images[:1].expand(count, -1, -1, -1))
    image_bytes = max(costs[1].peak_bytes - costs[0].peak_bytes, 0)
    return Step(
        parameters=sum(tensor.numel() for module in modules for tensor in shared_tensors(module).values()),
        fixed_bytes=max(costs[0].peak_bytes - 2 * image_bytes, 0),
        image_bytes=image_bytes,
        image_seconds=seconds / count,
    )


def _timed(forward: Callable[[Tensor], Tensor], images: Tensor) -> float:
    """Seconds of a pass on one thread, as a worker has it: the least of three, where the first is short; it chooses kernels."""
    seconds: list[float] = []
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # several wait for each other on a busy machine, a hundred times as long as they work
    try:
        while len(seconds) < 3 and sum(seconds) < MOST_SECONDS:
            start = time.perf_counter()
            forward(images).sum().backward()  # type: ignore[no-untyped-call]
            seconds.append(time.perf_counter() - start)
    finally:
        torch.set_num_threads(threads)
    return min(seconds)


def count_messages(experiment: Experiment, train: int, test: int) -> int:
    """Messages from the server to clients that hold so many examples, about: a client that fails is asked less."""
    clients = experiment.num_clients
    total = 2 * clients  # who are you, and set-up
    for pipeline in experiment.pipelines():
        observed = {kind: experiment.attacks_on(pipeline, kind) for kind in experiment.kinds}
        mine = scenario(experiment.scenario)
        total += clients * sum(
            mine.observed_rounds(experiment, kind) * (1 + len(chosen) + kind.asked)
            for kind, chosen in observed.items()
            if chosen
        )
        total += mine.count_messages(experiment, experiment.plan(pipeline), train, test)
    return total


def _told(name: str, part: ImageData) -> str:
    _, channels, height, width = part.images.shape
    stored = isinstance(part.images, StoredImages)
    where = "read batch by batch, more than image-memory" if stored else "in memory"
    return f"{len(part)} {name} images {channels}x{height}x{width} ({size_told(math.prod(part.images.shape))}, {where})"


def size_told(count: float) -> str:
    """Bytes in words."""
    return f"{count / GIB:.1f} GiB" if count >= GIB else f"{count / 2**20:.0f} MiB"


def _attacks(experiment: Experiment, step: Step) -> Iterator[str]:
    """The attacks of every pipeline, and what gradient inversion will take."""
    rounds, targets = len(experiment.attacked_rounds()), experiment.num_clients * experiment.probe_targets
    evaluations, texts = 0, set[str]()
    for pipeline in experiment.pipelines():
        for kind in experiment.kinds:
            chosen = experiment.attacks_on(pipeline, kind)
            texts.update(map(repr, chosen))
            # Chains that begin with the same attack run it once.
            for first in {repr(stage): stage for stage in (stages_of(attack)[0] for attack in chosen)}.values():
                if (kind.chosen or kind.pooled) and isinstance(first, GradientInversion):
                    times = scenario(experiment.scenario).observed_rounds(experiment, kind) if kind.pooled else rounds
                    # What knows how images look is run on noise, too.
                    runs = 1 + any(repr(stages_of(one)[0]) == repr(first) and one.learns_prior for one in chosen)
                    every = runs * first.evaluations * targets + first.preparation
                    evaluations += every * experiment.probe_images * times
    if not texts or not rounds:
        yield "attacks:    none"
        return
    seconds = 3 * evaluations * step.image_seconds / max(min(experiment.attack_workers, os.cpu_count() or 1), 1)
    known = (
        f"; up to {evaluations:,} evaluations of gradient inversion, {_duration(seconds)} to {_duration(8 * seconds)}"
        if evaluations
        else ""
    )
    yield (
        f"attacks:    {len(texts)} different ones in {rounds} rounds, on {targets * experiment.probe_images} images a round and "
        f"pipeline{known}; other attacks are not timed"
    )


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{max(seconds, 1):.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.0f} h"


def workers_of(clients: int, cpus_per_client: int) -> int:
    """Client processes that run at the same time on this machine."""
    return max(1, min(clients, (os.cpu_count() or 1) // cpus_per_client))
