"""Notices before the start of a run that may go on."""

from __future__ import annotations

from clients.data.card import DataCard
from simulations.experiment.experiment import Experiment
from simulations.report.studies.control import LEAST_IMAGES


def too_few_images(experiment: Experiment, num_clients: int) -> str:
    """A warning where a round attacks too few images for a verdict, or ""."""
    attacked = any(experiment.attacks[kind] for kind in experiment.kinds if kind.chosen)
    count = num_clients * experiment.probe_targets * experiment.probe_images
    if not attacked or not experiment.attacked_rounds or count >= LEAST_IMAGES:
        return ""
    return (
        f"each attacked round has {count} image{'' if count == 1 else 's'} ({num_clients} clients, probe-targets = "
        f"{experiment.probe_targets}, probe-images = {experiment.probe_images}), and a verdict needs {LEAST_IMAGES} or more: the "
        "report will print scores, but not whether an attack works; raise probe-targets"
    )


def idle_defenses(experiment: Experiment, card: DataCard) -> list[str]:
    """Reasons why defences of the run have no effect on its images, one clause each, for notices of a run that goes on."""
    found = (why for pipeline in experiment.pipelines for why in pipeline.idle(*card.input_shape[1:]))
    return list(dict.fromkeys(found))
