"""Settings that fit neither each other nor the scenario, refused before any work starts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from clients.auxiliary import OWN_AUXILIARY
from clients.data.card import DataCard
from clients.data.datasets import dataset_names
from clients.models.library import ModelError
from defenses.base import (
    DefenseError,
    EdgeTrainingDefense,
    InputDefense,
    SmashedDefense,
    TrainingDefense,
    UpdateDefense,
)
from defenses.feature_noise import FeatureDP
from simulations.errors import ConfigError, require_known
from simulations.report.analysis.control import LEAST_IMAGES

if TYPE_CHECKING:
    from simulations.experiment import Experiment

DEFAULT_MILESTONES = "5/8,7/8"
"""Where accuracy has climbed, the rate falls, so that the end of a run is no longer where the last steps happened to throw it."""

LABELS = {"federated": ("unknown", "known"), "split": ("server", "client")}
"""Scenario -> values of ``labels``, the usual one first."""

LARGEST_MESSAGE = 1 << 30
"""Bytes of smashed data in one message: Flower keeps several copies of it on the way."""


def check_scenario(experiment: Experiment) -> None:
    """Refuses values of one scenario in the other.

    Raises:
        ConfigError: With what is allowed.
    """
    allowed, held_out = LABELS[experiment.scenario], experiment.auxiliary_data == "held-out"
    if experiment.labels and experiment.labels not in allowed:
        raise ConfigError(
            f"labels is {experiment.labels!r}; allowed with scenario = {experiment.scenario!r}: "
            f"{' or '.join(map(repr, allowed))}"
        )
    if experiment.auxiliary_data not in OWN_AUXILIARY:
        allowed_data = {**dict.fromkeys(OWN_AUXILIARY), **dataset_names()}
        require_known("auxiliary-data", experiment.auxiliary_data.partition(":")[0], allowed_data)
    if experiment.pretrained:
        _check_pretrained(experiment)
    if experiment.scenario == "federated":
        if not held_out:
            raise ConfigError(
                f"auxiliary-data is {experiment.auxiliary_data!r}; allowed with scenario = 'federated': 'held-out'"
            )
        return
    if experiment.partition == "node" and experiment.who_holds_labels == "server":
        raise ConfigError("labels is 'server', but with partition = 'node' the server has none; set labels = 'client'")
    if experiment.fraction_train < 1:
        raise ConfigError(f"fraction-train is {experiment.fraction_train:g}; allowed with scenario = 'split': 1")


def _check_pretrained(experiment: Experiment) -> None:
    path = experiment.pretrained
    if experiment.scenario != "split":
        raise ConfigError(
            f"pretrained is {path!r}; allowed with scenario = {experiment.scenario!r}: '', random weights"
        )
    if experiment.model != "vit":
        raise ConfigError(
            f"pretrained is {path!r}; allowed with model = 'vit' only, not {experiment.model!r}: T2T-ViT's published checkpoints "
            "hold another performer attention than ours"
        )
    if not Path(path).expanduser().is_absolute():
        raise ConfigError(
            f"pretrained is {path!r}; expected an absolute path, because the folder of server and clients is not yours"
        )


def check_recipe(experiment: Experiment) -> None:
    """Refuses settings of local training that contradict each other, or that the scenario does not read.

    Raises:
        ConfigError: Naming the setting and what is allowed.
    """
    split = experiment.scenario == "split"
    if experiment.nesterov and not experiment.momentum:
        raise ConfigError("nesterov is True; allowed with momentum = 0: False, as there is nothing to look ahead by")
    if experiment.nesterov and split and experiment.optimizer != "sgd":
        raise ConfigError(f"nesterov is True; allowed with optimizer = {experiment.optimizer!r}: False")
    if not split and experiment.optimizer != "sgd":
        raise ConfigError(
            f"optimizer is {experiment.optimizer!r}; allowed with scenario = 'federated': 'sgd', whose updates attacks can read"
        )
    if not split and experiment.block_learning_rate:
        raise ConfigError(
            f"block-learning-rate is {experiment.block_learning_rate:g}; allowed with scenario = 'federated': 0, as all "
            "weights have one rate"
        )
    if split and experiment.learning_rate_milestones not in ("", DEFAULT_MILESTONES):
        raise ConfigError(
            f"learning-rate-milestones is {experiment.learning_rate_milestones!r}; allowed with scenario = 'split': '', as the "
            "rates fall along a cosine to learning-rate-floor"
        )
    if split and experiment.probe_mode != "train":
        raise ConfigError(
            f"probe-mode is {experiment.probe_mode!r}; allowed with scenario = 'split': 'train', as no probes are sent"
        )


def check_defenses(experiment: Experiment) -> None:
    """Refuses defences of something that the scenario never sends.

    Raises:
        ConfigError: Naming the defence and what to change.
    """
    for pipeline in experiment.pipelines():
        if pipeline.protects_once and experiment.task(pipeline).augments:
            raise ConfigError(
                f"defenses: {pipeline} protects an image once and keeps the result, but crop-padding = {experiment.crop_padding} "
                f"and horizontal-flip = {experiment.horizontal_flip} show training another view at every use, which would be "
                "protected anew each time, and the server could average: leave one of the two out"
            )
        for defense in pipeline.defenses:
            if experiment.scenario == "federated":
                if isinstance(defense, SmashedDefense | EdgeTrainingDefense):
                    raise ConfigError(f"defenses: {defense} protects smashed data, which needs scenario = 'split'")
            elif isinstance(defense, TrainingDefense):
                raise ConfigError(f"defenses: {defense} protects the training of whole models, not scenario = 'split'")
            elif isinstance(defense, FeatureDP) and defense.noise_multiplier and experiment.task(pipeline).trains_edge:
                raise ConfigError(
                    f"defenses: {defense} bounds what smashed data tell, and a client half that is trained also sends updates, "
                    f"which its epsilon does not cover: {_why_trained(experiment)}, or use FeatureNoise, which claims none"
                )
            elif isinstance(defense, UpdateDefense) and not experiment.task(pipeline).trains_edge:
                raise ConfigError(
                    f"defenses: {defense} protects updates; a frozen client half sends none: set train-edge"
                )
            elif (
                isinstance(defense, InputDefense) and defense.mixes_examples and experiment.who_holds_labels == "server"
            ):
                raise ConfigError(f"defenses: {defense} mixes labels, which a server cannot do: set labels = 'client'")


def too_few_images(experiment: Experiment, num_clients: int) -> str:
    """A warning where a round attacks too few images for a verdict, or ""."""
    asked = experiment.smashed_attacks if "smashed" in experiment.observations else experiment.probe_attacks
    count = num_clients * experiment.probe_targets * experiment.probe_images
    if not asked.strip() or not experiment.attacked_rounds() or count >= LEAST_IMAGES:
        return ""
    return (
        f"each attacked round has {count} image{'' if count == 1 else 's'} ({num_clients} clients, probe-targets = "
        f"{experiment.probe_targets}, probe-images = {experiment.probe_images}), and a verdict needs {LEAST_IMAGES} or more: the "
        "report will print scores, but not whether an attack works; raise probe-targets"
    )


def idle_defenses(experiment: Experiment, card: DataCard) -> list[str]:
    """Why defences of the run do nothing to its images, one clause each: the run goes on, and says so."""
    found = (why for pipeline in experiment.pipelines() for why in pipeline.idle(*card.input_shape[1:]))
    return list(dict.fromkeys(found))


def _why_trained(experiment: Experiment) -> str:
    return "unset train-edge" if experiment.train_edge else "take away the defence that trains it"


def check_halves(experiment: Experiment, card: DataCard) -> None:
    """Builds both halves under every pipeline, before any of them trains.

    Raises:
        ConfigError: When sizes do not fit the images, a defence cannot protect such batches, or a message would be too large.
    """
    for pipeline in experiment.pipelines():
        task = replace(experiment.task(pipeline), card=card)
        try:
            edge, _ = task.build_halves()
        except (ModelError, DefenseError) as error:
            raise ConfigError(f"{pipeline or 'no defence'}: {error}".removeprefix(": ")) from error
        tokens = edge.num_tokens * edge.dim * pipeline.widening
        size = 4 * experiment.batches_per_message * experiment.batch_size * tokens
        if size > LARGEST_MESSAGE:
            raise ConfigError(
                f"batches-per-message is {experiment.batches_per_message}: with batches of {experiment.batch_size} images of "
                f"{edge.num_tokens} tokens a message would hold {size / 2**30:.1f} GiB, and 1 GiB is allowed; lower one of them"
            )
