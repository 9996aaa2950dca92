"""Memory that a run needs, compared with this machine's."""

from __future__ import annotations

import math
from dataclasses import dataclass

import psutil

from clients.data.images import ImageDataset, StoredImages
from clients.process.machine import memory_of_machine
from clients.task.auxiliary import Auxiliary
from clients.task.task import FLOAT_BYTES
from simulations.experiment.experiment import Experiment
from simulations.experiment.scenario import scenario
from simulations.forecast.dry_run import GIB, StepMemory, shares, size_text
from simulations.settings.errors import ConfigError

PROCESS = 480 * 2**20
"""Bytes that a process of ours has with torch, Flower and our modules, its part of shared ones included (PSS; 360 to 580 MiB)."""
RUNTIME = 600 * 2**20
"""Bytes of Flower's and Ray's own processes together, likewise."""
ATTACK_STEPS = 3
"""An attack step differentiates a gradient: it keeps about so many times what a training step does."""
MOST_KEPT = 32
"""Clients whose protected images a worker keeps."""


@dataclass(frozen=True)
class Needs:
    """An estimate for all processes together, in bytes.

    Attributes:
        processes: Of ours.
        programs: What they take before any image.
        images: Data sets, protected shares and the server's examples.
        training: Steps of all clients that train at the same time.
        attacks: Steps of all attacks that run at the same time.
    """

    processes: int
    programs: float
    images: float
    training: float
    attacks: float

    @property
    def total(self) -> float:
        """Sum of all parts."""
        return self.programs + self.images + self.training + self.attacks

    def __str__(self) -> str:
        parts = {
            f"{self.processes} processes": self.programs,
            "images": self.images,
            "training": self.training,
            "attacks": self.attacks,
        }
        return (
            f"about {size_text(self.total)}: {', '.join(f'{name} {size_text(size)}' for name, size in parts.items())}"
        )


def needs_of(
    experiment: Experiment, data: ImageDataset, step: StepMemory, workers: int, *, in_process: bool = False
) -> Needs:
    """The estimate; measured of the programs and of a ``step``, reckoned of images, guessed of attacks (``ATTACK_STEPS``).

    The experiment has a number of clients. ``workers`` client processes run at the same time; ``in_process``: clients answer in
    the server's process.
    """
    attacked = bool(experiment.attacked_rounds)
    attackers = experiment.attack_workers if attacked else 0
    processes = 1 + attackers + (0 if in_process else workers + 1)  # the command that waits has imported torch, too
    server = scenario(experiment.scenario).trains_on_server
    training = 1 if server or in_process else workers
    # The defences of a client hold copies of a batch of images at once.
    batch = experiment.batch_size * math.prod(data.input_shape) * FLOAT_BYTES
    protection = max((pipeline.copies for pipeline in experiment.pipelines), default=0) * batch
    return Needs(
        processes,
        processes * PROCESS + (0 if in_process else RUNTIME),
        images_held(experiment, data, processes, workers, attackers),
        training * (step.peak(experiment.batch_size) + protection),
        max(attackers, attacked) * ATTACK_STEPS * step.peak(experiment.probe_images),
    )


def images_held(experiment: Experiment, data: ImageDataset, processes: int, workers: int, attackers: int) -> float:
    """Bytes of images in all processes together."""
    plain = experiment.plan()
    parts = (part.images for part in (data.train, data.test))
    held = sum(math.prod(images.shape) for images in parts if not isinstance(images, StoredImages))
    share = shares(experiment, data)[0] * math.prod(data.input_shape) * FLOAT_BYTES
    once = any(pipeline.once for pipeline in experiment.pipelines) and not plain.augments
    fits = share <= experiment.image_memory * GIB
    kept = share * min(experiment.num_clients, MOST_KEPT) if once and fits else 0
    uploaded = share * experiment.num_clients if scenario(experiment.scenario).trains_on_server else 0
    return processes * held + workers * kept + attackers * Auxiliary(plain).size() + uploaded


def check_needs(needs: Needs, there: int | None = None) -> str:
    """Refuse a run that cannot fit (``ConfigError``, with a remedy), and warn of one that fits only when others give way.

    ``there`` are the bytes that this machine has, by default what the system and its control group say. Returns the warning, or "".
    """
    machine = memory_of_machine() if there is None else there
    if needs.total > machine:
        raise ConfigError(
            f"memory: the run needs {needs}; this machine has {size_text(machine)} in all. Lower batch-size, image-size, "
            "attack-workers, train-limit or image-memory, give clients more CPUs each (--cpus-per-client), or run it --in-process"
        )
    free = psutil.virtual_memory().available
    if there is None and needs.total > free:
        return f"the run needs {needs}; {size_text(free)} are free now"
    return ""
