"""Tensors of recorded updates and of safetensors files, checked against the model."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import nn

from attacks.local_model import shared_tensors
from defenses.base import NamedTensors, Tensors, Update
from simulations.settings.errors import ConfigError


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


def few(names: Iterable[str]) -> str:
    """The first three names, and how many more there are."""
    listed = list(names)
    more = f" and {len(listed) - 3} more" if len(listed) > 3 else ""
    return ", ".join(map(repr, listed[:3])) + more or "nothing"


def read_file(key: str, path: Path) -> Tensors:
    """The tensors of a safetensors file; ``ConfigError`` beginning with the key where there is none."""
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
