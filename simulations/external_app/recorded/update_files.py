"""The safetensors files of one recorded update, checked against the model."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import nn

from attacks.local_model import shared_tensors
from clients.task.task import load_weights
from defenses.tensors import NamedTensors, Tensors, Update
from simulations.external_app.recorded.arguments.settings import AttackSettings
from simulations.settings.errors import ConfigError

WHOLE = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


def load_global_weights(model: nn.Module, path: Path) -> list[str]:
    """Copies the weights of a file into a model, in place.

    Returns:
        Names of the model's floating-point buffers that the file lacks; they keep their values.

    Raises:
        ConfigError: When a parameter is missing, or names, shapes or values do not fit.
    """
    weights, own = model_tensors(f"weights: {path}", _read("weights", path), model), shared_tensors(model)
    load_weights(model, own | weights)
    return [name for name in own if name not in weights]


def read_update(model: nn.Module, path: Path, *, local: bool) -> Update:
    """Name -> (local - global) of every parameter, and of the floating-point buffers that the file holds; float32.

    The model holds the global weights; with ``local``, the file holds the local ones, not their difference.

    Raises:
        ConfigError: When names, shapes or values do not fit the model, and when no parameter has changed.
    """
    found = model_tensors(f"UPDATE: {path}", _read("UPDATE", path), model)
    if local:
        start = shared_tensors(model)
        found = {name: value - start[name] for name, value in found.items()}
    if not any(found[name].any() for name, _ in model.named_parameters()):
        equal = "the local weights equal the global ones; allowed: weights after local training"
        why = equal if local else "every value is 0; allowed: local - global weights of a client that trained"
        raise ConfigError(f"UPDATE: {path} holds no update: {why}")
    return found


def resembles_weights(update: Update, model: nn.Module) -> bool:
    """Whether an update lies closer to the global weights than half their norm: then it may be local weights."""
    weights = {name: value.detach() for name, value in model.named_parameters()}
    away = sum(float((update[name] - value).square().sum()) for name, value in weights.items())
    size = sum(float(value.square().sum()) for value in weights.values())
    return away < 0.25 * size


def resembles_differences(came: Update, sent: Update) -> bool:
    """Whether a reply holds the change of the weights instead of weights: far shorter than the sent ones, in another direction.

    Weights that training merely shrank point where they did before.
    """
    a, b = (torch.cat([tensors[name].flatten() for name in sent]).double() for tensors in (came, sent))
    short = float(a.norm()) < 0.5 * float(b.norm())
    return short and float(a @ b) < 0.5 * float(a.norm() * b.norm())


def read_truth(path: Path, settings: AttackSettings) -> Tensors:
    """The true "images" (num_examples, C, H, W) in [0, 1], float32, and perhaps "labels" (num_examples,), int64.

    Raises:
        ConfigError: When the file holds anything else.
    """
    found = _read("originals", path)
    if "images" not in found or set(found) - {"images", "labels"}:
        raise ConfigError(f"originals: {path} holds {few(found)}; allowed: 'images', and perhaps 'labels'")
    images, expected = found["images"], (settings.num_examples, *settings.shape)
    if images.shape != expected or not images.is_floating_point():
        raise ConfigError(
            f"originals: images are {images.dtype} {tuple(images.shape)}; allowed: floating point {expected}"
        )
    if not (images.min() >= 0 and images.max() <= 1):  # A NaN is neither.
        low, high = images.min(), images.max()
        raise ConfigError(f"originals: images run from {low:g} to {high:g}; allowed: 0 to 1, before normalisation")
    truth = {"images": images.float()}
    if "labels" in found:
        labels, num_examples, num_classes = found["labels"], settings.num_examples, settings.num_classes
        allowed = f"allowed: whole numbers from 0 to {num_classes - 1}, of shape ({num_examples},)"
        if labels.dtype not in WHOLE or labels.shape not in ((num_examples,), (num_examples, 1)):
            raise ConfigError(f"originals: labels are {labels.dtype} {tuple(labels.shape)}; {allowed}")
        if labels.min() < 0 or labels.max() >= num_classes:
            raise ConfigError(f"originals: labels run from {labels.min()} to {labels.max()}; {allowed}")
        truth["labels"] = labels.long().reshape(num_examples)
    return truth


def few(names: Iterable[str]) -> str:
    """The first three names, and how many more there are."""
    listed = list(names)
    more = f" and {len(listed) - 3} more" if len(listed) > 3 else ""
    return ", ".join(map(repr, listed[:3])) + more or "nothing"


def _read(key: str, path: Path) -> Tensors:
    if not path.is_file():
        raise ConfigError(f"{key}: there is no file {path}")
    try:
        return load_file(path)
    except (SafetensorError, OSError) as error:
        raise ConfigError(f"{key}: {path} cannot be read as safetensors: {error}") from error


def model_tensors(where: str, found: NamedTensors, model: nn.Module) -> Tensors:
    """Tensors as float32: every parameter of the model, and any of its floating-point buffers, each by its first name.

    Raises:
        ConfigError: Beginning with ``where``, when a parameter is missing, when names, shapes or values do not fit, or when two
            names of one tensor hold different values.
    """
    parameters, first = dict(model.named_parameters()), dict[int, str]()
    own = dict(model.named_parameters(remove_duplicate=False)) | dict(model.named_buffers(remove_duplicate=False))
    for name, tensor in own.items():
        first.setdefault(id(tensor), name)
    for name, other in ((name, first[id(own[name])]) for name in found if name in own):
        if name != other and not found[name].equal(found.get(other, found[name])):
            raise ConfigError(
                f"{where}: {other!r} and {name!r}, one tensor of the model, differ; allowed: equal values"
            )
    found = {first[id(own[name])] if name in own else name: tensor for name, tensor in found.items()}
    if missing := [name for name in parameters if name not in found]:
        raise ConfigError(
            f"{where} lacks {few(missing)} of the model's {len(parameters)} parameters; it holds {few(found)}"
        )
    if unknown := [name for name in found if name not in own]:
        raise ConfigError(
            f"{where} holds {few(unknown)}, which the model does not have; its names begin {few(parameters)}"
        )
    for name, tensor in found.items():
        if tensor.shape != own[name].shape:
            raise ConfigError(f"{where}: {name!r} has shape {tuple(tensor.shape)}, the model {tuple(own[name].shape)}")
    # The others, such as BatchNorm's batch counter, carry nothing that a model needs.
    values = {name: found[name] for name in shared_tensors(model) if name in found}
    for name, tensor in values.items():
        if not tensor.is_floating_point():
            raise ConfigError(f"{where}: {name!r} has type {tensor.dtype}; allowed: floating-point numbers")
        if not tensor.float().isfinite().all():
            raise ConfigError(f"{where}: {name!r} holds NaN or infinite values (as float32); allowed: finite numbers")
    return {name: tensor.float() for name, tensor in values.items()}
