"""Notices before the start of a run that may go on, and its summary in a dry run."""

from __future__ import annotations

import itertools
from collections.abc import Mapping

from clients.data.card import DataCard
from clients.wire.schema import key_of
from simulations.experiment.experiment import Experiment
from simulations.report.studies.control import LEAST_IMAGES
from simulations.report.text import count

USUAL: Mapping[str, tuple[float, float]] = {
    "rounds": (1, 10_000), "local_epochs": (1, 1000), "local_steps": (0, 100_000), "learning_rate": (1e-6, 10.0),
    "weight_decay": (0, 1.0), "probe_targets": (1, 10_000),
}  # fmt: skip
"""Setting -> the smallest and the largest value of a sensible run; ``clients.wire.limits`` has the values that are possible."""


def unusual_values(experiment: Experiment) -> list[str]:
    """A warning about each setting that is possible and hardly meant: it takes days, or trains nothing."""
    found = []
    for name, (least, most) in USUAL.items():
        value = getattr(experiment, name, least)
        if not least <= value <= most:
            shown = value if isinstance(value, int) else f"{value:g}"
            found.append(f"{key_of(name)} is {shown}; sensible values are {least:g} to {most:g}")
    return found


def too_few_images(experiment: Experiment, num_clients: int) -> str:
    """A warning where a round attacks too few images for a verdict, or ""."""
    attacked = any(experiment.attacks[kind] for kind in experiment.kinds if kind.chosen)
    images = num_clients * experiment.probe_targets * experiment.probe_images
    if not attacked or not experiment.attacked_rounds or images >= LEAST_IMAGES:
        return ""
    return (
        f"each attacked round has {count(images, 'image')} ({num_clients} clients, probe-targets = "
        f"{experiment.probe_targets}, probe-images = {experiment.probe_images}), and a verdict needs {LEAST_IMAGES} or more: the "
        "report will print scores, but not whether an attack works; raise probe-targets"
    )


def idle_defenses(experiment: Experiment, card: DataCard) -> list[str]:
    """Reasons why defences of the run have no effect on its images, one clause each, for notices of a run that goes on."""
    found = (why for pipeline in experiment.pipelines for why in pipeline.idle(*card.input_shape[1:]))
    return list(dict.fromkeys(found))


def summary(experiment: Experiment) -> list[str]:
    """What a run whose settings passed their checks would do, line by line."""
    rounds, attacks = len(experiment.attacked_rounds), "; ".join(named_attacks(experiment))
    return [
        f"scenario:   {experiment.scenario}",
        f"pipelines:  {'; '.join(str(pipeline) or 'no defence' for pipeline in experiment.pipelines)}",
        f"attacks:    {attacks}; in {count(rounds, 'round')}" if attacks and rounds else "attacks:    none",
        f"clients:    {experiment.num_clients}",
        f"rounds:     {experiment.rounds} for each pipeline",
    ]


def named_attacks(experiment: Experiment) -> list[str]:
    """All attacks of a run, adaptive ones included, each once."""
    pairs = itertools.product(experiment.pipelines, experiment.kinds)
    return list(dict.fromkeys(repr(attack) for pair in pairs for attack in experiment.attacks_on(*pair)))
