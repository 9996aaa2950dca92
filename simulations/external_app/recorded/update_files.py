"""Observations of attacks from recorded replies and from safetensors files, checked against the model."""

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import nn

from attacks import ClientUpdate
from attacks.local_model import shared_tensors
from attacks.observations import trained_parameters
from clients.external_app.partial import AppModel, ModelMismatchError
from clients.task.task import load_weights
from defenses.tensors import NamedTensors, Tensors, Update
from simulations.external_app.recorded.attack_file import build, observation_of
from simulations.external_app.recorded.settings import AttackSettings
from simulations.settings.errors import ConfigError
from strategies.recording.files import RecordedReply


def observe_reply(reply: RecordedReply, settings: AttackSettings) -> ClientUpdate:
    """The observation of a recorded reply.

    Raises:
        ConfigError: When the arrays do not fit the model, or hold no update of weights.
    """
    model = build(settings)
    start = fitted(reply.sent_arrays(), model, f"{reply.path}: the weights sent")
    load_weights(model, shared_tensors(model) | start)
    came, before = fitted(reply.arrays(), model, str(reply.path)), shared_tensors(model)
    if resembles_differences(came, {name: before[name] for name in trained_parameters(model)}):
        raise ConfigError(
            f"{reply.path}: the reply seems to hold differences (local - global), not weights: it is short beside the "
            "weights sent, and points elsewhere; allowed: weights. Its file of arrays can be attacked as a single update, with "
            "the file of what was sent as weights"
        )
    update = {name: value - before[name] for name, value in came.items()}
    return _observed(
        settings, model, update, f"{reply.path}: the client sent back what it was sent: there is nothing to attack"
    )


def observe_file(path: Path, settings: AttackSettings) -> ClientUpdate:
    """The observation of the update in a file, which started from ``weights``; with ``local`` the file holds the local weights.

    Raises:
        ConfigError: When names, shapes or values do not fit the model, or no parameter has changed.
    """
    model, _ = started(settings)
    update = model_tensors(f"UPDATE: {path}", read_file("UPDATE", path), model)
    why = "every value is 0; allowed: local - global weights of a client that trained"
    if settings.local:
        before = shared_tensors(model)
        update = {name: value - before[name] for name, value in update.items()}
        why = "the local weights equal the global ones; allowed: weights after local training"
    return _observed(settings, model, update, f"UPDATE: {path} holds no update: {why}")


def started(settings: AttackSettings) -> tuple[nn.Module, list[str]]:
    """The model with the weights of the file ``weights``, and the names of its floating-point buffers that the file lacks."""
    model = build(settings)
    if not settings.weights:
        return model, []
    path, own = Path(settings.weights), shared_tensors(model)
    weights = model_tensors(f"weights: {path}", read_file("weights", path), model)
    load_weights(model, own | weights)
    return model, [name for name in own if name not in weights]


def _observed(settings: AttackSettings, model: nn.Module, update: Tensors, unchanged: str) -> ClientUpdate:
    """The observation; ``ConfigError`` with the sentence ``unchanged`` where no parameter has changed."""
    if not any(update[name].any() for name, _ in model.named_parameters()):
        raise ConfigError(unchanged)
    return observation_of(settings, model, update)


def fitted(arrays: dict[str, np.ndarray], model: nn.Module, where: str) -> Tensors:
    """Arrays as tensors by the model's names (``AppModel.named``), with the model's own frozen parameters where none came.

    Raises:
        ConfigError: When a parameter that is not frozen is missing, or names, shapes or values do not fit.
    """
    app = AppModel.of(model)
    try:
        named = app.named(tensors_of(arrays))
    except ModelMismatchError as error:
        raise ConfigError(f"{where}: {error}") from error
    return model_tensors(where, app.whole(named), model)


def tensors_of(arrays: dict[str, np.ndarray]) -> Tensors:
    """Arrays as tensors of their own."""
    return {name: torch.from_numpy(np.array(array)) for name, array in arrays.items()}


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


def model_tensors(where: str, tensors: NamedTensors, model: nn.Module) -> Tensors:
    """Tensors as float32: every parameter of the model, and any of its floating-point buffers, each by its first name.

    Raises:
        ConfigError: Beginning with ``where``, when a parameter is missing, when names, shapes or values do not fit, or when two
            names of one tensor hold different values.
    """
    parameters, first = dict(model.named_parameters()), dict[int, str]()
    own = dict(model.named_parameters(remove_duplicate=False)) | dict(model.named_buffers(remove_duplicate=False))
    for name, tensor in own.items():
        first.setdefault(id(tensor), name)
    for name, other in ((name, first[id(own[name])]) for name in tensors if name in own):
        if name != other and not tensors[name].equal(tensors.get(other, tensors[name])):
            raise ConfigError(
                f"{where}: {other!r} and {name!r}, one tensor of the model, differ; allowed: equal values"
            )
    tensors = {first[id(own[name])] if name in own else name: tensor for name, tensor in tensors.items()}
    if missing := [name for name in parameters if name not in tensors]:
        raise ConfigError(
            f"{where} lacks {few(missing)} of the model's {len(parameters)} parameters; it holds {few(tensors)}"
        )
    if unknown := [name for name in tensors if name not in own]:
        raise ConfigError(
            f"{where} holds {few(unknown)}, which the model does not have; its names begin {few(parameters)}"
        )
    for name, tensor in tensors.items():
        if tensor.shape != own[name].shape:
            raise ConfigError(f"{where}: {name!r} has shape {tuple(tensor.shape)}, the model {tuple(own[name].shape)}")
    # The others, such as BatchNorm's batch counter, carry nothing that a model needs.
    values = {name: tensors[name] for name in shared_tensors(model) if name in tensors}
    for name, tensor in values.items():
        if not tensor.is_floating_point():
            raise ConfigError(f"{where}: {name!r} has type {tensor.dtype}; allowed: floating-point numbers")
        if not tensor.float().isfinite().all():
            raise ConfigError(f"{where}: {name!r} holds NaN or infinite values (as float32); allowed: finite numbers")
    return {name: tensor.float() for name, tensor in values.items()}
