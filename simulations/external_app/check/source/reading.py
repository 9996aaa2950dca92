"""All facts from an app's source, in one place."""

from __future__ import annotations

from dataclasses import dataclass

from simulations.external_app.check.source.entries import (
    Builder,
    SeenReplies,
    Start,
    read_builders,
    read_replies,
    read_start,
)
from simulations.external_app.check.source.images import Images, read_images
from simulations.external_app.check.source.loading import Loading, read_loading
from simulations.external_app.check.source.origins import Origins
from simulations.external_app.check.source.project import Project
from simulations.external_app.check.source.training import SeenTraining, read_training


@dataclass(frozen=True)
class AppSource:
    """Facts from an app's source.

    Attributes:
        training: Optimizer, numbers and loss.
        images: Normalisation, random transforms, fields of a batch.
        loading: The app's function for data; None where none was found.
        builders: Calls that build the model.
        replies: What replies to training hold.
        start: Where the rounds start; None where it was not found.
    """

    training: SeenTraining
    images: Images
    loading: Loading | None
    builders: tuple[Builder, ...]
    replies: SeenReplies
    start: Start | None


def read_source(project: Project) -> AppSource:
    """Look through the files of both entry points; nothing of them is run."""
    origins = Origins(project)
    training = read_training(project, origins)
    return AppSource(
        training, read_images(project, origins, training), read_loading(project, origins),
        tuple(read_builders(project, origins)), read_replies(project), read_start(project),
    )  # fmt: skip
