"""Notices before the start of a run that may go on, and its summary in a dry run."""

from __future__ import annotations

import itertools

from clients.data.card import DataCard
from simulations.experiment.experiment import Experiment
from simulations.report.studies.control import LEAST_IMAGES
from simulations.report.text import count


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
