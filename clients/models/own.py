"""The user's own networks: by ``file.py:Class``, ``package.module:factory``, or the name of an entry point ``fedveil.models``."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from clients.models.library import LIBRARIES, ModelError, without_in_place
from clients.process.own_code import OwnCodeError, accepted, installed, is_own, origin, own_code
from defenses.base import ImageShape

FAR = 1000.0
"""How many times as large inputs, or weights, are tried."""
IN_PLACE = "; something is changed in place that a layer needs: write y = y + 1 in place of y += 1"


def prove(called: str, model: nn.Module, num_classes: int, input_shape: ImageShape) -> None:
    """Try the operations of training and attacks on a copy: logits, first and second gradients; ``ModelError`` for failures."""
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
    _require_two_signs(called, trial.eval(), images)
    _require_gradients(called, trial.train(), images)


def _require_two_signs(called: str, model: nn.Module, images: Tensor) -> None:
    """Refuse outputs of a ReLU, sigmoid or tanh: with inputs or last weights far from zero, logits grow and these do not."""
    last = copy.deepcopy(model)
    owners = [one for one in last.modules() if any(True for _ in one.parameters(recurse=False))]
    with torch.no_grad():
        for parameter in owners[-1].parameters(recurse=False):
            parameter.mul_(FAR)
        both = torch.cat([images, -images.flip(0)])
        for trial, scale in ((model, FAR), (last, 1.0)):
            try:
                answers = trial(both * scale)
            except Exception:  # not the size of an image: whatever it is, nothing is proved
                continue
            if not answers.isfinite().all() or not answers.any():
                continue
            saturated = torch.isclose(answers.abs(), answers.abs().round(), atol=1e-3) & (answers.abs() < 1.5)
            one_sided = (answers >= 0).all() or (answers <= 0).all()
            if saturated.all() or (one_sided and (answers == 0).any()):
                raise ModelError(
                    f"{called} answers with values from {answers.min():.3g} to {answers.max():.3g}, and with no others however "
                    "large its inputs are, as behind a ReLU, sigmoid or tanh; logits, from before it, are expected"
                )


def disturb(model: nn.Module) -> None:
    """Adds values from -0.1 to 0.1 to the parameters, the same at every call."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.linspace(-0.1, 0.1, max(parameter.numel(), 2))[: parameter.numel()].view_as(parameter))


def _require_gradients(called: str, model: nn.Module, images: Tensor) -> None:
    """Refuses a model through which no gradient reaches the images, or none of the gradient."""
    disturb(model)  # Some parameters start with zeros, and would hide everything before them.
    weights = [parameter for parameter in model.parameters() if parameter.requires_grad]
    seen = images.clone().requires_grad_()
    try:
        # As attacks compute it: the fused attention kernels have no second derivative.
        with sdpa_kernel(SDPBackend.MATH):
            loss = F.cross_entropy(model(seen), torch.zeros(len(images), dtype=torch.long))
        gradient = torch.autograd.grad(loss, weights, create_graph=True, allow_unused=True)
        norm = torch.stack([one.square().sum() for one in gradient if one is not None]).sum()
        torch.autograd.grad(norm, seen)
        (reached,) = torch.autograd.grad(F.cross_entropy(model(seen), torch.zeros(len(images), dtype=torch.long)), seen)
    except RuntimeError as error:
        raise ModelError(
            f"{called}: the gradient of its gradient, by which attacks compare updates, cannot be computed"
            f"{_cut_at(model, images)}: {error}{IN_PLACE if 'inplace' in str(error) else ''}"
        ) from error
    if not reached.any():
        raise ModelError(
            f"{called}: no gradient reaches the images, as behind torch.round or argmax{_cut_at(model, images)}; what a model "
            "computes must have a gradient"
        )


def _cut_at(model: nn.Module, images: Tensor) -> str:
    """The first layer whose answer has no gradient to speak of though its input has, in words, or ""."""
    names, cut = {module: name for name, module in model.named_modules() if name}, list[str]()

    def leave(module: nn.Module, given: Any, answer: Any) -> None:
        if cut or not isinstance(answer, Tensor) or not given or not isinstance(given[0], Tensor):
            return
        if given[0].requires_grad and not answer.requires_grad:
            cut.append(names[module])

    hooks = [module.register_forward_hook(leave) for module in names]
    try:
        model(images.clone().requires_grad_())
    except Exception:
        return ""
    finally:
        for hook in hooks:
            hook.remove()
    return f" (its layer {cut[0]!r} detaches what it is given)" if cut else ""


def _last(model: nn.Module) -> nn.Module | None:
    """The layer that is defined last; in most models the output layer."""
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
    except Exception:  # the first error has been reported already
        return f"at its layer {reached[-1]!r}: " if reached else ""
    finally:
        for hook in hooks:
            hook.remove()
    return ""


GROUP = "fedveil.models"
"""Entry points of models."""


def offered_models() -> dict[str, str]:
    """Name -> one line with its origin: models of other packages. ``RegistryError`` where one is badly named."""
    return {name: origin(point) for name, point in installed(GROUP).items()}


def own_factory(name: str) -> Callable[..., Any] | None:
    """The class or function that makes the model, or None for a known model; to be called before weights are seeded."""
    try:
        place = installed(GROUP)[name].value if name in installed(GROUP) else name
        return own_code(place) if is_own(place, LIBRARIES) else None
    except OwnCodeError as error:
        raise ModelError(f"model: {error}") from error


def build_own_model(name: str, factory: Callable[..., Any], num_classes: int, input_shape: ImageShape) -> nn.Module:
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
