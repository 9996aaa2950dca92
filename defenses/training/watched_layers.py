"""Layers that show what they see in the passes of a loss: their inputs, and the gradients at their outputs."""

import functools
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.nn.modules.batchnorm import _BatchNorm

from defenses.base import DefenseError
from defenses.tensors import Loss
from defenses.training.layer_gradients import Spread, is_known, spread_weights
from defenses.training.quiet_import import opacus_module

REPLACING = "in the function that builds the model, return opacus.validators.ModuleValidator.fix(model)"
"""What a model of one's own can do about layers that Opacus can replace."""

_LEFT_BY_HOOKS = ("ft_compute_sample_grad", "grad_sample", "summed_grad", "_norm_sample")
"""On layers and parameters."""


def remove_hooks(model: nn.Module) -> None:
    """Remove the hooks of an earlier ``DPSGD`` from a model, so that the model can be used alone or protected again."""
    for hook in getattr(model, "autograd_grad_sample_hooks", []):
        hook.remove()
    if hasattr(model, "autograd_grad_sample_hooks"):
        del model.autograd_grad_sample_hooks
    for owner in (*model.modules(), *model.parameters()):
        for name in _LEFT_BY_HOOKS:
            if hasattr(owner, name):
                delattr(owner, name)


def check_layers(model: nn.Module, owner: object) -> None:
    """Refuse a model in train mode that mixes examples by BatchNorm, or has other layers without gradients per example.

    Raises:
        DefenseError: With the layers, and what a model of one's own can do about them; ``owner`` is named.
    """
    if layers := [name for name, module in model.named_modules() if isinstance(module, _BatchNorm)]:
        raise DefenseError(
            f"{owner}: BatchNorm ({', '.join(layers[:3])}) mixes examples, so that no bound per example holds; "
            "use GroupNorm"
        )
    try:
        errors = opacus_module("validators").ModuleValidator.validate(model)
    except NotImplementedError as error:
        errors = [error]
    if errors:
        replaced = any(type(error).__name__ == "ShouldReplaceModuleError" for error in errors)
        way_out = f"; {REPLACING}" if replaced else ""
        raise DefenseError(f"{owner}: the model has no gradients per example: {errors[0]}{way_out}")


def attach_hooks(model: nn.Module, owner: object) -> "WatchedLayers":
    """Let the layers of a model show what they see in train mode.

    Raises:
        DefenseError: When the model has BatchNorm or another layer without per-example gradients; ``owner`` is named.
    """
    check_layers(model, owner)
    remove_hooks(model)
    for module in model.modules():
        # What a layer saw must stay as it was; the function computed is the same.
        if getattr(module, "inplace", False):
            module.inplace = False  # type: ignore[assignment]
    try:
        opacus_module("grad_sample").GradSampleModule.validate(model, strict=True)
        return WatchedLayers(model)
    except (NotImplementedError, ValueError) as error:
        raise DefenseError(f"{owner}: the model has no gradients per example: {error}") from error


class WatchedLayers:
    """The layers of a model that have gradients per example.

    Within its layer a weight takes no part in the graph, so that no backward pass computes the sum of its gradients.

    Attributes:
        weights: Those that are trained.
        uses: Weight -> number of calls of layers in the last pass.
        edges: Of the graph, at the outputs of these calls.
    """

    def __init__(self, model: nn.Module) -> None:
        self.weights: list[Any] = [weight for weight in model.parameters() if weight.requires_grad]
        self.uses, self.edges = Counter[nn.Parameter](), list[GradientEdge]()
        self._running, self._passes, self._begun = False, 0, 0
        self._seen: Callable[[nn.Module, list[Tensor], Tensor], None] = lambda *_: None
        self._held: list[list[tuple[nn.Module, str, Any]]] = []
        for weight in self.weights:
            weight.grad_sample = None
        hooks: list[Any] = []
        model.autograd_grad_sample_hooks = hooks  # type: ignore[assignment]  # where Opacus looks for its own
        for layer in _layers(model):
            if not is_known(layer):
                opacus_module("grad_sample.functorch").prepare_layer(layer)
            hooks.append(layer.register_forward_pre_hook(self._before))
            hooks.append(layer.register_forward_hook(self._after, always_call=True))

    def run(self, loss: Loss, *given: Any) -> tuple[Tensor, int]:
        """The loss, and the number of the pass by which ``begin`` knows it."""
        self._passes, self._running = self._passes + 1, True
        self.uses.clear()
        self.edges.clear()
        try:
            return loss(*given), self._passes
        finally:
            self._running = False

    def begin(self, number: int, seen: Callable[[nn.Module, list[Tensor], Tensor], None]) -> None:
        """Show what layers see in the backward pass that follows: the layer, its inputs and the gradients at its output."""
        self._begun, self._seen = number, seen

    def _before(self, module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        shown = self._running and module.training and torch.is_grad_enabled()
        owners = () if not shown else (module,) if is_known(module) else module.modules()
        own = [(one, name, weight) for one in owners for name, weight in one._parameters.items() if weight is not None]
        self._held.append([entry for entry in own if entry[2].requires_grad])
        spread = bool(self._held[-1]) and bool(spread_weights(module))
        for one, name, weight in self._held[-1]:
            fixed = weight.detach()
            if spread:
                fixed = fixed.expand(len(inputs[0]), *weight.shape[1:]).requires_grad_()
                self._watch(Spread(weight), [weight.detach()], fixed, [weight])
            one._parameters[name] = fixed

    def _after(self, module: nn.Module, inputs: tuple[Tensor, ...], output: Any) -> Tensor | None:
        held = self._held.pop()
        for one, name, weight in held:
            one._parameters[name] = weight
        if not held or output is None or spread_weights(module):
            return None
        if not isinstance(output, Tensor):
            raise ValueError(f"{type(module).__name__} returns {type(output).__name__}, and must return one tensor")
        if not output.requires_grad:
            output = output.detach().requires_grad_()
        self._watch(module, [one.detach() for one in inputs], output, [weight for *_, weight in held])
        shown: Tensor = output
        return shown

    def _watch(self, module: nn.Module, inputs: list[Tensor], output: Tensor, weights: list[nn.Parameter]) -> None:
        self.uses.update(weights)
        self.edges.append(get_gradient_edge(output))
        versions = [one._version for one in inputs]
        output.register_hook(functools.partial(self._arrived, self._passes, module, inputs, versions))  # type: ignore[no-untyped-call]

    def _arrived(self, number: int, module: nn.Module, inputs: Any, versions: list[int], gradients: Tensor) -> None:
        if number != self._begun:
            return
        if versions != [one._version for one in inputs]:
            raise ValueError("an operation in place changed what a layer saw")
        self._seen(module, inputs, gradients)


def _layers(module: nn.Module) -> Iterator[nn.Module]:
    """Modules with trained weights of their own. One of an unknown class is one layer with all that is in it."""
    own = any(weight.requires_grad for weight in module.parameters(recurse=False))
    # What Opacus' recurrent layers hold are names for the weights of their cells, which are layers.
    if own and not (
        recurrent := type(module).__module__ == "opacus.layers.dp_rnn" and not isinstance(module, nn.Linear)
    ):
        yield module
    if not own or recurrent or is_known(module):
        for child in module.children():
            yield from _layers(child)
