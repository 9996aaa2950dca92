"""Settings of ``fedveil attack`` as values, and the server's knowledge beside an update: the model, and auxiliary data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from attacks import AttackError, ClientUpdate, Knowledge
from attacks.gradient.labels import exact_learning_rate
from clients.data.datasets import load_dataset, to_float
from clients.data.images import MissingDataError
from clients.models.classifiers import build_model
from clients.scoring.retrieval import KnownImages
from defenses.base import Batch, Update
from defenses.pipeline import Pipeline
from defenses.spec import parse
from simulations.external_app.recorded.settings import AttackSettings, whole_numbers
from simulations.runtime.own_code_trials import try_dataset, try_model
from simulations.settings.errors import ConfigError, naming


def pipeline_of(settings: AttackSettings) -> Pipeline:
    """The client's defences; ``ConfigError`` for a text that names none."""
    with naming("defenses"):
        return parse(settings.defenses)


def doubts_of(settings: AttackSettings) -> Sequence[str]:
    """Properties of an own model that change the meaning of numbers, one clause each; it is tried once, in a child process."""
    return try_model("model", settings.model, settings.num_classes, settings.shape, settings.width, settings.norm)


def build(settings: AttackSettings) -> nn.Module:
    """The model that settings name, with the initial weights of its seed.

    Raises:
        ConfigError: When there is none of that name, or it cannot be built so.
    """
    doubts_of(settings)
    try:
        return build_model(
            settings.model, num_classes=settings.num_classes, input_shape=settings.shape, width=settings.width,
            norm=settings.norm, seed=settings.seed,
        )  # fmt: skip
    except ValueError as error:
        raise ConfigError(f"model {settings.model}: {error}") from error
    except (RuntimeError, MemoryError) as error:  # of torch, such as an allocation that cannot be served
        raise ConfigError(
            f"model {settings.model} cannot be built for input-shape {settings.input_shape}: {error}"
        ) from error


def observation_of(settings: AttackSettings, model: nn.Module, update: Update) -> ClientUpdate:
    """The attacks' observation of a client's update, which started from the model."""
    labels = torch.tensor(whole_numbers(settings.labels)) if settings.labels else None
    return ClientUpdate(
        model, update, settings.shape, *settings.statistics, settings.num_examples,
        settings.batch_size or settings.num_examples, settings.local_steps, settings.learning_rate or None, settings.weight_decay,
        labels, settings.probe_mode == "train", settings.momentum, settings.nesterov,
    )  # fmt: skip


def with_inferred_rate(observation: ClientUpdate) -> ClientUpdate:
    """The observation, with the learning rate that its update proves if none is known (``exact_learning_rate``)."""
    if observation.learning_rate is not None:
        return observation
    try:
        return replace(observation, learning_rate=exact_learning_rate(observation))
    except AttackError:
        return observation


def knowledge_of(settings: AttackSettings) -> Knowledge:
    """Auxiliary data and the defence; an empty batch without auxiliary data."""
    shape, classes = settings.shape, settings.num_classes
    batch = Batch(torch.zeros(0, *shape), torch.zeros(0, classes))
    if settings.auxiliary_data:
        size = shape[1] if shape[1] == shape[2] else 0
        try_dataset("auxiliary-data", settings.auxiliary_data)
        with naming("auxiliary-data"):
            try:
                data = load_dataset(settings.auxiliary_data, data_dir=settings.data_dir, image_size=size)
            except MissingDataError as error:  # whose own message may name a download
                raise MissingDataError(error.found) from error
        if data.multi_label:
            raise ConfigError(
                f"auxiliary-data {settings.auxiliary_data} has several labels for each image; the model tells classes apart"
            )
        if data.input_shape != shape or data.num_classes != classes:
            raise ConfigError(
                f"auxiliary-data {settings.auxiliary_data} has {data.num_classes} classes of images {data.input_shape}; the model "
                f"has {classes} and {shape}"
            )
        batch = Batch(to_float(data.train.images[:]), F.one_hot(data.train.labels, classes).float())

    def train(_: Batch, __: int) -> nn.Module:
        raise AttackError(
            "how the client trains is not known for a recorded update; audit this attack with `fedveil run`"
        )

    return Knowledge(batch, pipeline_of(settings), *settings.statistics, train)


def without_truth(knowledge: Knowledge, truth: Tensor, name: str) -> tuple[Knowledge, list[str]]:
    """The auxiliary examples, of data of that name, that are no true image (N, C, H, W), and a sentence on how many are.

    Raises:
        ConfigError: When nothing is left of them.
    """
    known = KnownImages(truth)
    kept = torch.tensor([image not in known for image in knowledge.auxiliary.images], dtype=torch.bool)
    if kept.all():  # as where there are none
        return knowledge, []
    lost = int((~kept).sum())
    if not kept.any():
        raise ConfigError(
            f"auxiliary-data {name} holds nothing but true images; allowed: data that are not the clients'"
        )
    own = knowledge.auxiliary
    which = f"{lost} of the {len(kept)} images of auxiliary-data {name}"
    sentence = f"{which} are true images: they were left out of what attacks learn from."
    return replace(knowledge, auxiliary=Batch(own.images[kept], own.targets[kept])), [sentence]
