"""The user's own networks: by ``file.py:Class``, ``package.module:factory``, or the name of an entry point ``fedveil.models``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

from clients.models.library import LIBRARIES, ModelError, Shape, without_in_place
from clients.models.own_trial import prove
from clients.process.own_code import OwnCodeError, accepted, installed, is_own, origin, own_code

GROUP = "fedveil.models"
"""Entry points of models."""


def is_own_model(name: str) -> bool:
    """Whether a model's name is a place of code, not the name of a known model."""
    return is_own(name, LIBRARIES)


def offered_models() -> dict[str, str]:
    """Name -> one line with its origin: models of other packages. ``RegistryError`` where one is badly named."""
    return {name: origin(point) for name, point in installed(GROUP).items()}


def own_factory(name: str) -> Callable[..., Any] | None:
    """The class or function that makes the model, or None for a known model; to be called before weights are seeded."""
    try:
        place = installed(GROUP)[name].value if name in installed(GROUP) else name
        return own_code(place) if is_own_model(place) else None
    except OwnCodeError as error:
        raise ModelError(f"model: {error}") from error


def build_own_model(name: str, factory: Callable[..., Any], num_classes: int, input_shape: Shape) -> nn.Module:
    """Call a factory, and prove that it makes a classifier of such images which can be trained and attacked; else ``ModelError``.

    The factory gets ``num_classes`` and ``input_shape`` (C, H, W), each where it has a parameter of that name.
    """
    if isinstance(factory, nn.Module):
        raise ModelError(f"model {name!r} is a model already; name a class or function that builds it")
    offered = {"num_classes": num_classes, "input_shape": tuple(input_shape)}
    if isinstance(factory, type) and next(one for one in factory.__mro__ if "__init__" in vars(one)) is nn.Module:
        offered = {}  # torch's own takes any argument, to refuse it
    try:
        taken = accepted(name, factory, offered)
    except OwnCodeError as error:
        raise ModelError(f"model {error}") from error
    called = f"{name}({', '.join(f'{key}={value}' for key, value in taken.items())})"
    try:
        model = factory(**taken)
    except (Exception, SystemExit) as error:
        raise ModelError(f"{called} raises {type(error).__name__}: {error}") from error
    if not isinstance(model, nn.Module):
        raise ModelError(f"{called} returns {type(model).__name__}; a torch.nn.Module is expected")
    prove(called, model, num_classes, input_shape)
    return without_in_place(model).train()
