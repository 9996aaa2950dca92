"""A dry run: facts about an experiment that are known before anything is trained, sent or written."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from clients.data.images import ImageData, ImageDataset, StoredImages
from clients.task.auxiliary import Auxiliary
from clients.task.task import FLOAT_BYTES, Plan
from clients.training.step_cost import StepCost, measure_step
from simulations.experiment.experiment import Experiment
from simulations.experiment.scenario import scenario
from simulations.report.text import count
from simulations.settings.errors import ConfigError

GIB = 2**30


@dataclass(frozen=True)
class StepMemory:
    """Memory of one training step without a defence.

    Attributes:
        parameters: Of the model, both halves together.
        fixed_bytes: At the peak, whatever the batch.
        image_bytes: At the peak for every image of a batch.
    """

    parameters: int
    fixed_bytes: float
    image_bytes: float

    def peak(self, batch: int) -> float:
        """Bytes at the peak of a step on so many images."""
        return self.fixed_bytes + batch * self.image_bytes


def check_memory(experiment: Experiment, data: ImageDataset) -> None:
    """Raise ``ConfigError`` where all images of a client, or of all clients, are needed at once and do not fit."""
    plan, limit = experiment.plan(), experiment.image_memory * GIB
    if experiment.crop_padding >= min(data.input_shape[1:]):
        raise ConfigError(
            f"crop-padding is {experiment.crop_padding}; allowed: below {min(data.input_shape[1:])}, the images' side, or a "
            "crop may be black"
        )
    attacked = any(
        experiment.attacks_on(pipeline, kind) for pipeline in experiment.pipelines for kind in experiment.kinds
    )
    if attacked and experiment.attacked_rounds:
        try:
            Auxiliary(plan).check()
        except ValueError as error:
            raise ConfigError(str(error)) from error
    size = shares(experiment, data)[0] * math.prod(data.input_shape) * FLOAT_BYTES
    if scenario(experiment.scenario).trains_on_server and size * experiment.num_clients > limit:
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
    """Approximate number of training and test examples of a client, assuming an even partition."""
    held = len(Auxiliary(experiment.plan()).held_out(data.train.strata()))
    clients = experiment.num_clients
    return (len(data.train) - held) // clients, len(data.test) // clients


def describe(experiment: Experiment, step: StepMemory, needs: object) -> Iterator[str]:
    """Work and memory of a run, line by line; the settings have passed their checks."""
    plan = experiment.plan()
    data = plan.load_data()
    yield f"data:       {experiment.dataset}, {_part('train', data.train)}; {_part('test', data.test)}"
    yield from (f"warning:    {note}" for note in data.notes)
    train, test = shares(experiment, data)
    yield f"clients:    {experiment.num_clients}, about {train} training and {test} test examples each"
    yield (
        f"model:      {experiment.model}, {step.parameters:,} parameters; a training step on {experiment.batch_size} images needs "
        f"about {size_text(step.peak(experiment.batch_size))}, a probe of {count(experiment.probe_images, 'image')} about "
        f"{size_text(step.peak(experiment.probe_images))}, without a defence"
    )
    yield f"memory:     {needs}"
    names = [str(pipeline) or "no defence" for pipeline in experiment.pipelines]
    yield f"pipelines:  {len(names)}, each for {count(experiment.rounds, 'round')}: {'; '.join(names)}"
    rounds = experiment.attacked_rounds
    chosen = {
        repr(attack): None
        for pipeline in experiment.pipelines
        for kind in experiment.kinds
        for attack in experiment.attacks_on(pipeline, kind)
    }
    yield (
        f"attacks:    {'; '.join(chosen)}; in {count(len(rounds), 'round')}"
        if chosen and rounds
        else "attacks:    none"
    )
    if trained := shadow_trainings(experiment):
        each = "; ".join(f"{attack} {number}" for attack, number in trained.items())
        yield (
            f"shadows:    {count(sum(trained.values()), 'training')} of a new model for "
            f"{count(experiment.rounds, 'round')}: {each}"
        )


def shadow_trainings(experiment: Experiment) -> dict[str, int]:
    """Attack -> how many shadow models a run trains for it, at the server or at clients, all pipelines together."""
    found: dict[str, int] = {}
    rounds = len(experiment.attacked_rounds)
    for pipeline, kind in itertools.product(experiment.pipelines if rounds else (), experiment.kinds):
        for attack in experiment.attacks_on(pipeline, kind):
            if where := attack.trains_shadows:
                times = 1 if where == "server" else rounds * experiment.num_clients
                found[repr(attack)] = found.get(repr(attack), 0) + times * getattr(attack, "num_shadows", 0)
    return found


def measure(plan: Plan) -> StepMemory:
    """Run a forward and a backward pass on two and on three images, under a plan without a defence whose card is known."""
    modules, forward = scenario(plan.scenario).whole_model(plan)
    shape, costs = plan.data_card().input_shape, list[StepCost]()
    for batch in (2, 3):  # BatchNorm needs two.
        images = (torch.arange(numbers := batch * math.prod(shape)) / numbers).reshape(batch, *shape)
        costs.append(measure_step(lambda images=images: forward(images), modules, trained=True))  # type: ignore[misc]
    image_bytes = max(costs[1].peak_bytes - costs[0].peak_bytes, 0)
    return StepMemory(costs[0].parameters, max(costs[0].peak_bytes - 2 * image_bytes, 0), image_bytes)


def _part(name: str, part: ImageData) -> str:
    _, channels, height, width = part.images.shape
    stored = isinstance(part.images, StoredImages)
    where = "read batch by batch, more than image-memory" if stored else "in memory"
    return f"{len(part)} {name} images {channels}x{height}x{width} ({size_text(math.prod(part.images.shape))}, {where})"


def size_text(size: float) -> str:
    """Bytes in words."""
    return f"{size / GIB:.1f} GiB" if size >= GIB else f"{size / 2**20:.0f} MiB"
