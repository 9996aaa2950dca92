"""What a run should say aloud before it starts, though it may go on."""

from __future__ import annotations

from dataclasses import Field, fields, is_dataclass
from typing import Any

from attacks.spec import stages_of
from clients.data.card import DataCard
from simulations.experiment.experiment import Experiment
from simulations.report.studies.control import LEAST_IMAGES
from simulations.settings.fields import key_of

MOST_STEPS = 1_000_000
"""Of one training or search by gradient: a quarter of an hour at a thousandth of a second each."""
MOST_WIDTH = 8192
MOST_ROUNDS = 100_000
"""More than a day at a second each."""


def huge_numbers(experiment: Experiment) -> list[str]:
    """Numbers of steps, and widths, that nobody can wait for, one clause each; they may be meant, and no check can know."""
    found = [
        f"{key_of(spec.name)} is {getattr(experiment, spec.name)}"
        for spec in fields(experiment)
        if _is_huge(spec.name, getattr(experiment, spec.name))
    ]
    parts: list[Any] = [part for pipeline in experiment.pipelines for part in pipeline.defenses]
    for pipeline in experiment.pipelines:
        for kind in experiment.kinds:
            parts += [stage for attack in experiment.attacks_on(pipeline, kind) for stage in stages_of(attack)]
    for text, part in {repr(part): part for part in parts}.items():
        given: tuple[Field[Any], ...] = fields(part) if is_dataclass(part) else ()
        found += [
            f"{text}: {spec.name} is {getattr(part, spec.name)}"
            for spec in given
            if _is_huge(spec.name, getattr(part, spec.name))
        ]
    return [f"{one}, which may never end or fit" for one in found]


def _is_huge(name: str, value: object) -> bool:
    limit = {"width": MOST_WIDTH, "rounds": MOST_ROUNDS}.get(name, MOST_STEPS)
    return (
        isinstance(value, int)
        and value > limit
        and name.rpartition("_")[2] in ("epochs", "iterations", "rounds", "steps", "width")
    )


def too_few_images(experiment: Experiment, num_clients: int) -> str:
    """A warning where a round attacks too few images for a verdict, or ""."""
    asked = any(experiment.attacks[kind] for kind in experiment.kinds if kind.chosen)
    count = num_clients * experiment.probe_targets * experiment.probe_images
    if not asked or not experiment.attacked_rounds or count >= LEAST_IMAGES:
        return ""
    return (
        f"each attacked round has {count} image{'' if count == 1 else 's'} ({num_clients} clients, probe-targets = "
        f"{experiment.probe_targets}, probe-images = {experiment.probe_images}), and a verdict needs {LEAST_IMAGES} or more: the "
        "report will print scores, but not whether an attack works; raise probe-targets"
    )


def idle_defenses(experiment: Experiment, card: DataCard) -> list[str]:
    """Why defences of the run do nothing to its images, one clause each: the run goes on, and says so."""
    found = (why for pipeline in experiment.pipelines for why in pipeline.idle(*card.input_shape[1:]))
    return list(dict.fromkeys(found))
