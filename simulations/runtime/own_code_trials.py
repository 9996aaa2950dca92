"""Own models and own data are tried in a child process before this process imports them (``clients.process.trial_process``)."""

from __future__ import annotations

import functools
from collections.abc import Sequence

from clients.data.datasets import dataset_names
from clients.data.own import GROUP as DATASETS
from clients.models.library import LIBRARIES
from clients.models.own import GROUP as MODELS
from clients.process.own_code import OwnCodeError, installed, is_own
from clients.process.trial_process import AbruptError, tried
from simulations.settings.errors import ConfigError

MODEL_SECONDS, DATA_SECONDS = 120.0, 600.0
"""After which a trial is given up. Data may have to be fetched."""
IN_CHILD = "it was tried in a child process before anything else started"
DOUBTS = {
    "random": "has random output in eval mode, such as active dropout or drawn noise: accuracy and attack scores change from call "
    "to call",
    "mixes": "mixes the images of a batch in eval mode, such as by batch statistics, a softmax over dimension 0 or a shuffle: "
    "accuracy depends on which images are evaluated together",
    "mixes in training": "mixes the images of a batch in train mode by more than BatchNorm, or keeps something of earlier batches: "
    "the gradient of an image depends on other images",
}
"""Of ``clients.models.doubts``, in words."""


@functools.cache
def try_dataset(key: str, name: str) -> None:
    """Read a few examples in a child process if the data set's name, in the setting ``key``, means the user's own code."""
    if place := _place(name, DATASETS, dataset_names()):
        try:
            tried("clients.data.own:examine", {"name": place}, DATA_SECONDS)
        except OwnCodeError as error:
            raise _refused(key, name, error) from error


@functools.cache
def try_model(
    key: str,
    name: str,
    num_classes: int,
    input_shape: tuple[int, int, int],
    width: int = 0,
    norm: str = "group",
    batch_size: int = 2,
) -> Sequence[str]:
    """Build and try a model in a child process if its name, in the setting ``key``, means the user's own code.

    The other arguments are those of ``build_model``, and the images of a step. Returns the values of ``DOUBTS`` that apply.
    """
    if not _place(name, MODELS, LIBRARIES):
        return ()
    arguments = {
        "name": name, "num_classes": num_classes, "input_shape": list(input_shape), "width": width, "norm": norm,
        "batch_size": batch_size,
    }  # fmt: skip
    try:
        found = tried("clients.models.doubts:examine", arguments, MODEL_SECONDS)
    except OwnCodeError as error:
        raise _refused(key, name, error) from error
    return tuple(text for doubt, text in DOUBTS.items() if doubt in found)


def _place(name: str, group: str, known: Sequence[str] | dict[str, str]) -> str:
    """FILE.py:NAME or PACKAGE.MODULE:NAME of own code, or "" where a name means something else."""
    if name in installed(group):
        return installed(group)[name].value
    return name if is_own(name, known) else ""


def _refused(key: str, name: str, error: OwnCodeError) -> ConfigError:
    text = str(error)
    if isinstance(error, AbruptError):
        return ConfigError(f"{key}: {name} {text}; {IN_CHILD}")
    if text.startswith((f"{key}: ", f"{key} '")):
        return ConfigError(text)
    return ConfigError(f"{key}: {text.removeprefix('dataset: ').removeprefix('model: ')}")
