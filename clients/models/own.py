"""Networks of anybody's own: the class or function that ``file.py:Class`` or ``package.module:factory`` names.

Naming one runs its code. Whoever starts a run names it himself; a deployed node builds none that its operator did not allow
(``clients.questions.require_own_model``).
"""

from __future__ import annotations

import copy
import functools
import hashlib
import importlib
import importlib.util
import inspect
import math
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from clients.models.library import LIBRARIES, ModelError, Shape, without_in_place

GIVEN = ("num_classes", "input_shape")
"""Arguments that a class or function gets where it has parameters of these names."""


def is_own(name: str) -> bool:
    """Whether a model's name says where the code is, and not which of the known ones is meant."""
    prefix, colon, _ = name.rpartition(":")
    if not colon or prefix in LIBRARIES:
        return False
    # A word that is no module may be a library that was misspelt.
    try:
        return _is_file(prefix) or "." in prefix or importlib.util.find_spec(prefix) is not None
    except ValueError:  # of the program that runs, which has no place to be imported from
        return False


def absolute(name: str) -> str:
    """The same name with its file's path made absolute: what starts later has another working directory."""
    prefix, _, attribute = name.rpartition(":")
    return f"{Path(prefix).expanduser().resolve()}:{attribute}" if is_own(name) and _is_file(prefix) else name


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
    arguments = {"num_classes": num_classes, "input_shape": tuple(input_shape)}
    accepted = _accepted(name, factory, arguments)
    called = f"{name}({', '.join(f'{key}={value}' for key, value in accepted.items())})"
    try:
        model = factory(**accepted)
    except Exception as error:
        raise ModelError(f"{called} raises {type(error).__name__}: {error}") from error
    if not isinstance(model, nn.Module):
        raise ModelError(f"{called} returns {type(model).__name__}; a torch.nn.Module is expected")
    _prove(called, model, num_classes, input_shape)
    return without_in_place(model).train()


def own_factory(name: str) -> Callable[..., Any]:
    """The class or function of ``path/file.py:NAME``, or of ``package.module:NAME`` that can be imported.

    To be called before weights are seeded: a file may draw when it is imported, which happens once in a process.

    Raises:
        ModelError: Where there is no such file, module or name.
    """
    place, _, attribute = name.rpartition(":")
    module = _from_file(Path(place).expanduser().resolve()) if _is_file(place) else _imported(place)
    found = getattr(module, attribute, None)
    if not callable(found):
        known = sorted(
            key for key, value in vars(module).items() if inspect.isclass(value) and issubclass(value, nn.Module)
        )
        what = "has no" if found is None else f"has {type(found).__name__}, nothing to call, as"
        raise ModelError(f"model {name!r}: {place} {what} {attribute!r}; networks in it: {', '.join(known) or 'none'}")
    return found


def _is_file(place: str) -> bool:
    return place.endswith(".py")


@functools.cache
def _from_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise ModelError(f"model: there is no file {path}")
    # The same name in every process, so that what it defines can be sent from one to another.
    name = f"{path.stem}_{hashlib.blake2b(str(path).encode(), digest_size=4).hexdigest()}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))  # A file may import what lies beside it, now and later; ours comes first.
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        raise ModelError(f"model: {path} cannot be imported: {type(error).__name__}: {error}") from error
    return module


def _imported(place: str) -> ModuleType:
    try:
        return importlib.import_module(place)
    except Exception as error:
        hint = (
            f"; a file is named by its path, such as {place.replace('.', '/')}.py:NAME"
            if isinstance(error, ImportError)
            else ""
        )
        raise ModelError(f"model: {place} cannot be imported: {type(error).__name__}: {error}{hint}") from error


def _accepted(name: str, factory: Callable[..., Any], arguments: dict[str, Any]) -> dict[str, Any]:
    """Those of the arguments that it has parameters for."""
    try:
        parameters = inspect.signature(factory).parameters.values()
    except (TypeError, ValueError) as error:
        raise ModelError(f"model {name!r}: its parameters cannot be read: {error}") from error
    takes_all = any(one.kind is one.VAR_KEYWORD for one in parameters)
    free = [one for one in parameters if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)]
    needed = [
        one.name
        for one in free
        if one.default is one.empty and (one.name not in arguments or one.kind is one.POSITIONAL_ONLY)
    ]
    if needed:
        raise ModelError(
            f"model {name!r} needs {', '.join(needed)}; given are {' and '.join(GIVEN)} alone: name a function that fills in "
            "the rest"
        )
    names = {one.name for one in free}
    return {key: value for key, value in arguments.items() if takes_all or key in names}


def _prove(called: str, model: nn.Module, num_classes: int, input_shape: Shape) -> None:
    """Tries on a copy what training and attacks do: logits, their gradient, and the gradient of that.

    Raises:
        ModelError: Saying what does not work, and at which layer.
    """
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise ModelError(f"{called} has no parameter to train")
    try:
        trial = copy.deepcopy(model)
    except Exception as error:
        raise ModelError(f"{called} cannot be copied ({error}); its tensors must be parameters or buffers") from error
    images = torch.linspace(0, 1, 2 * math.prod(input_shape)).view(2, *input_shape)
    for training in (False, True):
        try:
            logits = trial.train(training)(images)
        except Exception as error:
            where = _where(trial, images)
            mode = "in train mode" if training else "in eval mode"
            raise ModelError(f"{called} does not take images of {tuple(input_shape)} {mode}: {where}{error}") from error
        _require_logits(called, logits, num_classes)
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


def _require_logits(called: str, logits: Any, num_classes: int) -> None:
    if not isinstance(logits, torch.Tensor):
        raise ModelError(f"{called} answers with {type(logits).__name__}; logits (B, {num_classes}) are expected")
    if tuple(logits.shape) != (2, num_classes):
        raise ModelError(
            f"{called} answers two images with shape {tuple(logits.shape)}; logits (2, {num_classes}) are expected"
        )
    if not logits.isfinite().all():
        raise ModelError(f"{called} answers with NaN or infinite logits")
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
