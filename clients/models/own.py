"""Networks of anybody's own: by ``file.py:Class``, ``package.module:factory``, or the name of an entry point ``fedveil.models``."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from clients.models.library import LIBRARIES, ModelError, Shape, without_in_place
from clients.own_code import OwnCodeError, accepted, installed, is_own, origin, own_code

GROUP = "fedveil.models"
"""Entry points of models."""


def is_own_model(name: str) -> bool:
    """Whether a model's name says where the code is, and not which of the known ones is meant."""
    return is_own(name, LIBRARIES)


def offered_models() -> dict[str, str]:
    """Name -> one line with its origin: models of other packages.

    Raises:
        RegistryError: Where one is badly named.
    """
    return {name: origin(point) for name, point in installed(GROUP).items()}


def own_factory(name: str) -> Callable[..., Any] | None:
    """The class or function that makes the model; None for a model that is known by its name. Before weights are seeded.

    Raises:
        ModelError: Where there is no such file, module or name.
    """
    try:
        place = installed(GROUP)[name].value if name in installed(GROUP) else name
        return own_code(place) if is_own_model(place) else None
    except OwnCodeError as error:
        raise ModelError(f"model: {error}") from error


def build_own_model(name: str, factory: Callable[..., Any], num_classes: int, input_shape: Shape) -> nn.Module:
    """Calls a factory, and proves that it makes a classifier of such images which can be trained and attacked.

    Args:
        name: For errors.
        factory: As ``own_factory`` finds it. It is called with ``num_classes`` and ``input_shape`` (C, H, W), each where it has a
            parameter of that name.
        num_classes: Number of logits.
        input_shape: (C, H, W).

    Raises:
        ModelError: Where it cannot be called so, or what it returns is no classifier.
    """
    try:
        given = accepted(name, factory, {"num_classes": num_classes, "input_shape": tuple(input_shape)})
    except OwnCodeError as error:
        raise ModelError(f"model {error}") from error
    called = f"{name}({', '.join(f'{key}={value}' for key, value in given.items())})"
    try:
        model = factory(**given)
    except (Exception, SystemExit) as error:
        raise ModelError(f"{called} raises {type(error).__name__}: {error}") from error
    if not isinstance(model, nn.Module):
        raise ModelError(f"{called} returns {type(model).__name__}; a torch.nn.Module is expected")
    _prove(called, model, num_classes, input_shape)
    return without_in_place(model).train()


def _prove(called: str, model: nn.Module, num_classes: int, input_shape: Shape) -> None:
    """Tries on a copy what training and attacks do: logits, their gradient, and the gradient of that.

    Raises:
        ModelError: Saying what does not work, and at which layer.
    """
    if lazy := [name for name, one in model.named_parameters() if isinstance(one, nn.UninitializedParameter)]:
        raise ModelError(
            f"{called}: {lazy[0]} has no shape before the first images (a lazy layer); name a function that shows the model some "
            "first, so that server and clients begin with the same weights"
        )
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise ModelError(f"{called} has no parameter to train")
    try:
        trial = copy.deepcopy(model)
    except Exception as error:
        raise ModelError(f"{called} cannot be copied ({error}); its tensors must be parameters or buffers") from error
    # Images enter a model normalised, and so beyond [0, 1].
    images = torch.linspace(-2, 2, 2 * math.prod(input_shape)).view(2, *input_shape)
    for training in (False, True):
        try:
            logits = trial.train(training)(images)
        except Exception as error:
            where = _where(trial, images)
            mode = "in train mode" if training else "in eval mode"
            raise ModelError(f"{called} does not take images of {tuple(input_shape)} {mode}: {where}{error}") from error
        _require_logits(called, trial, logits, num_classes)
    weights = [parameter for parameter in trial.parameters() if parameter.requires_grad]
    seen = images.clone().requires_grad_()
    try:
        loss = F.cross_entropy(trial(seen), torch.zeros(2, dtype=torch.long))
        gradient = torch.autograd.grad(loss, weights, create_graph=True, allow_unused=True)
        norm = torch.stack([one.square().sum() for one in gradient if one is not None]).sum()
        torch.autograd.grad(norm, seen)
    except RuntimeError as error:
        raise ModelError(
            f"{called}: the gradient of its gradient, by which attacks compare updates, cannot be computed: {error}"
        ) from error


def _last(model: nn.Module) -> nn.Module | None:
    """The layer that is declared last; of most models the one that answers."""
    layers = [one for one in model.modules() if not any(True for _ in one.children())]
    return layers[-1] if layers else None


def _require_logits(called: str, model: nn.Module, logits: Any, num_classes: int) -> None:
    if not isinstance(logits, torch.Tensor):
        raise ModelError(f"{called} answers with {type(logits).__name__}; logits (B, {num_classes}) are expected")
    if tuple(logits.shape) != (2, num_classes):
        raise ModelError(
            f"{called} answers two images with shape {tuple(logits.shape)}; logits (2, {num_classes}) are expected"
        )
    if not logits.isfinite().all():
        raise ModelError(f"{called} answers with NaN or infinite logits")
    if bool(((logits > 0) & (logits < 1)).all()) and isinstance(_last(model), nn.Sigmoid | nn.Softmax):
        raise ModelError(f"{called} ends in {type(_last(model)).__name__}; logits, from before it, are expected")
    sums = logits.detach().exp().sum(1) if logits.min() < 0 else logits.detach().sum(1)
    if torch.allclose(sums, torch.ones(2), atol=1e-5):
        raise ModelError(
            f"{called} answers with probabilities or their logarithms; logits, from before the softmax, are expected"
        )


def _where(model: nn.Module, images: Tensor) -> str:
    """The layer at which a forward pass stops, in words, or ""."""
    reached: list[str] = []
    names = {module: name for name, module in model.named_modules() if name}

    def enter(module: nn.Module, _: Any) -> None:
        reached.append(names[module])

    def leave(module: nn.Module, *_: Any) -> None:
        reached.remove(names[module])

    hooks = [module.register_forward_pre_hook(enter) for module in names]
    hooks += [module.register_forward_hook(leave) for module in names]
    try:
        with torch.no_grad():
            model(images)
    except Exception:  # It is the second time: what it says is known.
        return f"at its layer {reached[-1]!r}: " if reached else ""
    finally:
        for hook in hooks:
            hook.remove()
    return ""
