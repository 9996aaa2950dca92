"""The user's own networks: by ``file.py:Class``, ``package.module:factory``, or the name of an entry point ``fedveil.models``."""

import copy
import inspect
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from attacks.gradient.costs import COSTS
from attacks.gradient.trial_gradients.matching import GradientMatching, MatchingProblem, attackable
from attacks.observations import trained_parameters
from clients.models.library import LIBRARIES, ModelError, without_in_place
from clients.process.own_code import OwnCodeError, accepted, installed, is_own, origin, own_code
from defenses.module_calls import calls_of
from defenses.tensors import ImageShape
from defenses.training.clipping_trial import layer_of

FAR = 1000.0
"""How many times as large inputs, or weights, are tried."""
IN_PLACE = "; something is changed in place that a layer needs: write y = y + 1 in place of y += 1"
REMEDIES = {
    "inplace": IN_PLACE, "in-place": IN_PLACE,
    "setup_context": "; register no backward hooks, and write functions with setup_context and generate_vmap_rule = True",
    "item()": "; choose by torch.where in place of a number's value",
    "broadcast shape": "; among torch's recurrent layers, attacks can follow only nn.LSTM",
    "tuple": "; a layer such as nn.GRU answers with several values: take the one that the next layer needs",
}  # fmt: skip
"""What a message of torch holds -> what to do."""


def plain(called: str, model: nn.Module) -> nn.Module:
    """The model in float32 on the CPU, without what ``torch.compile`` and ``nn.DataParallel`` put around it or its parts.

    Raises:
        ModelError: For TorchScript, tensors without values, and parameters that are no real numbers.
    """
    model = _unwrapped(model)
    if any(isinstance(module, torch.jit.ScriptModule) for module in model.modules()):
        raise ModelError(
            f"{called} is of TorchScript, whose operations attacks cannot follow; build it without torch.jit"
        )
    parameters, buffers = dict(model.named_parameters()), dict(model.named_buffers())
    for name, tensor in (parameters | buffers).items():
        if is_lazy(tensor):
            raise ModelError(
                f"{called}: {name} has no shape before the first images (a lazy layer); name a function that shows the model some "
                "first, so that server and clients begin with the same weights"
            )
        if tensor.is_meta:
            raise ModelError(f"{called}: {name} is on the device meta, without values; build the model on the CPU")
    for name, tensor in parameters.items():
        if not tensor.is_floating_point():
            raise ModelError(
                f"{called}: the parameter {name} is {tensor.dtype}; allowed: real floating-point numbers. Whole numbers belong in "
                "a buffer, a complex number in two parameters"
            )
    return model.cpu().float()


def _unwrapped(model: Any) -> Any:
    while isinstance(model, nn.DataParallel | nn.parallel.DistributedDataParallel) or hasattr(model, "_orig_mod"):
        model = model._orig_mod if hasattr(model, "_orig_mod") else model.module
    vars(model).pop("_compiled_call_impl", None)  # of ``model.compile()``
    for name, part in model._modules.items():
        if part is not None and (inner := _unwrapped(part)) is not part:
            model._modules[name] = inner
    return model


def prove(called: str, model: nn.Module, num_classes: int, input_shape: ImageShape) -> None:
    """Refuse, by ``ModelError``, a model that ``require_attackable`` refuses, or whose answers are no logits."""
    require_attackable(called, model, num_classes, input_shape)
    trial = _copied(called, model).eval()
    logits = trial(_images(input_shape))
    if bool(((logits > 0) & (logits < 1)).all()) and isinstance(_last(trial), nn.Sigmoid | nn.Softmax):
        raise ModelError(f"{called} ends in {type(_last(trial)).__name__}; logits, from before it, are expected")
    sums = logits.detach().exp().sum(1) if logits.min() < 0 else logits.detach().sum(1)
    if torch.allclose(sums, torch.ones(2), atol=1e-5):
        raise ModelError(
            f"{called} answers with probabilities or their logarithms; logits, from before the softmax, are expected"
        )
    _require_two_signs(called, trial, _images(input_shape))


def require_attackable(called: str, model: nn.Module, num_classes: int, input_shape: ImageShape) -> None:
    """Have copies of a model do what training and attacks do: answer one image and two, and be inverted from a gradient.

    Raises:
        ModelError: Where they cannot.
    """
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise ModelError(f"{called} has no parameter to train")
    require_one_input(called, model)
    trial, images = _copied(called, model), _images(input_shape)
    for training, count in ((False, 2), (True, 2), (False, 1)):
        logits = answer_of(called, trial.train(training), images[:count])
        _require_logits(called, logits, count, num_classes)
    trial = _copied(called, nn.ModuleList([trial, model]))[0]  # Either may have kept something of its answers.
    _require_inversion(called, trial, images, num_classes)


def answer_of(called: str, model: nn.Module, images: Tensor) -> Any:
    """What a model answers to normalised images (B, C, H, W); ``ModelError``, with the layer, where it fails."""
    try:
        return model(images)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        mode = "in train mode" if model.training else "in eval mode"
        raise ModelError(
            f"{called} does not take images of {tuple(images.shape[1:])} {mode}: {_said(error, model)}"
        ) from error


def _said(error: BaseException, model: nn.Module) -> str:
    where = f"at its layer {layer!r}: " if (layer := layer_of(error, model)) else ""
    why = str(error).partition("\n")[0].rstrip(".") if isinstance(error, Exception) else repr(error)
    return where + why + next((REMEDIES[fragment] for fragment in REMEDIES if fragment in str(error)), "")


def require_one_input(called: str, model: nn.Module) -> None:
    """Refuse, by ``ModelError``, a model that images alone do not suffice for."""
    try:
        inspect.signature(model.forward).bind("images")
    except TypeError as error:
        raise ModelError(
            f"{called}: its forward takes other arguments than the images ({error}); wrap it in a model that fills in the rest"
        ) from error


def _images(input_shape: ImageShape) -> Tensor:
    """Two images; they enter a model normalised, and so beyond [0, 1]."""
    return torch.linspace(-2, 2, 2 * math.prod(input_shape)).view(2, *input_shape)


def _copied(called: str, model: Any) -> Any:
    try:
        return copy.deepcopy(model)
    except (Exception, SystemExit) as error:
        raise ModelError(
            f"{called} cannot be copied ({error}); its tensors must be parameters or buffers, and what it keeps of an answer must "
            "be detached"
        ) from error


def _require_two_signs(called: str, model: nn.Module, images: Tensor) -> None:
    """Refuse outputs of a ReLU, sigmoid or tanh: with inputs or last weights far from zero, logits grow and these do not."""
    last = copy.deepcopy(model)
    owners = [module for module in last.modules() if any(True for _ in module.parameters(recurse=False))]
    with torch.no_grad():
        for parameter in owners[-1].parameters(recurse=False):
            parameter.mul_(FAR)
        both = torch.cat([images, -images.flip(0)])
        for trial, scale in ((model, FAR), (last, 1.0)):
            try:
                answers = trial(both * scale)
            except (Exception, SystemExit):  # not the size of an image: whatever it is, nothing is proved
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


def _require_inversion(called: str, model: nn.Module, images: Tensor, num_classes: int) -> None:
    """Refuse a model whose gradients gradient matching cannot compare, or compare by the images."""
    with torch.no_grad():
        for parameter in model.parameters():  # Some start with zeros, and would hide everything before them.
            parameter.add_(torch.linspace(-0.1, 0.1, max(parameter.numel(), 2))[: parameter.numel()].view_as(parameter))
    shown = {name: torch.zeros(1, *weight.shape) for name, weight in trained_parameters(model).items()}
    for train_mode in (False, True):
        seen = images[: 1 + train_mode]  # One image may have no batch statistics.
        inverted, shape = attackable(model, train_mode), (len(seen), *images[0].shape)
        try:
            labels = inverted(seen).argmin(1)[None]  # Of the likeliest class a gradient may round to zero.
            problem = MatchingProblem(inverted, shape, num_classes, shown, labels, COSTS["l2"], 0.0)
            _, reached = GradientMatching(problem)(seen.reshape(1, -1), torch.arange(1))
        except (Exception, SystemExit) as error:
            raise ModelError(
                f"{called}: the gradient of its gradient, by which attacks compare updates, cannot be computed"
                f"{_cut_at(model, images)}: {_said(error, inverted)}"
            ) from error
        if not reached.any():
            raise ModelError(
                f"{called}: no gradient reaches the images, as behind torch.no_grad, torch.round or argmax"
                f"{_cut_at(model, images)}; what a model computes must have a gradient"
            )


def _cut_at(model: nn.Module, images: Tensor) -> str:
    """The first layer whose answer has no gradient to speak of though its input has, in words, or ""."""
    names = {module: name for name, module in model.named_modules() if name}
    try:
        with calls_of(names) as calls:
            model(images.clone().requires_grad_())
    except (Exception, SystemExit):
        return ""
    for module, given, answer in calls:
        if isinstance(given, Tensor) and isinstance(answer, Tensor) and given.requires_grad > answer.requires_grad:
            return f" (its layer {names[module]!r} detaches what it is given)"
    return ""


def _last(model: nn.Module) -> nn.Module | None:
    """The layer that is defined last; in most models the output layer."""
    layers = [module for module in model.modules() if not any(True for _ in module.children())]
    return layers[-1] if layers else None


def _require_logits(called: str, logits: Any, count: int, num_classes: int) -> None:
    if not isinstance(logits, Tensor) or logits.dtype != torch.float32:
        came = logits.dtype if isinstance(logits, Tensor) else type(logits).__name__
        raise ModelError(f"{called} answers with {came}; real logits (B, {num_classes}) in float32 are expected")
    if tuple(logits.shape) != (count, num_classes):
        raise ModelError(
            f"{called} answers {'two images' if count == 2 else 'one image'} with shape {tuple(logits.shape)}; logits "
            f"({count}, {num_classes}) are expected"
        )
    if not logits.isfinite().all():
        raise ModelError(f"{called} answers with NaN or infinite logits")


_PROVEN: set[tuple[Any, ...]] = set()
"""Calls, classes and images for which this process has proved a model: it builds one for every message."""
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
    if isinstance(factory, type) and next(base for base in factory.__mro__ if "__init__" in vars(base)) is nn.Module:
        offered = {}  # torch's own takes any argument, to refuse it
    try:
        taken = accepted(name, factory, offered)
    except OwnCodeError as error:
        raise ModelError(f"model {error}") from error
    called = f"model: {name}({', '.join(f'{key}={value}' for key, value in taken.items())})"
    try:
        model = factory(**taken)
    except (Exception, SystemExit) as error:
        raise ModelError(f"{called} raises {type(error).__name__}: {error}") from error
    if not isinstance(model, nn.Module):
        raise ModelError(f"{called} returns {type(model).__name__}; a torch.nn.Module is expected")
    model = plain(called, model)
    if (asked := (factory, called, num_classes, tuple(input_shape))) not in _PROVEN:
        prove(called, model, num_classes, input_shape)
        _PROVEN.add(asked)
    return without_in_place(model).train()
