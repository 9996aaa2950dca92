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


class Pass:
    """One forward pass.

    Attributes:
        uses: Weight -> number of calls of layers.
        seen: What is shown in the backward pass that follows: the layer, its inputs and the gradients at its output.
    """

    def __init__(self) -> None:
        self.uses = Counter[nn.Parameter]()
        self.seen: Callable[[nn.Module, list[Tensor], Tensor], None] | None = None


class WatchedLayers:
    """The layers of a model that have gradients per example.

    Within its layer a weight takes no part in the graph, so that no backward pass computes the sum of its gradients. One that gets
    a gradient all the same acts where nothing bounds it: the step is refused.

    Attributes:
        names: Of the weights that are trained.
        weights: These weights.
    """

    def __init__(self, model: nn.Module) -> None:
        self.names: dict[Any, str] = {weight: name for name, weight in model.named_parameters() if weight.requires_grad}
        self.weights = list(self.names)
        self._pass: Pass | None = None
        self._edges = list[GradientEdge]()
        self._frozen = [weight for weight in model.parameters() if not weight.requires_grad]
        self._ready, self._strays = False, list[str]()
        self._held: list[list[tuple[nn.Module, str, Any]]] = []
        hooks: list[Any] = []
        model.autograd_grad_sample_hooks = hooks  # type: ignore[assignment]  # where Opacus looks for its own
        for weight, name in self.names.items():
            weight.grad_sample = None
            # A weight's hook that held this object would keep both for ever.
            hooks.append(weight.register_post_accumulate_grad_hook(functools.partial(_note, self._strays, name)))
        for layer in _layers(model):
            if not is_known(layer):
                opacus_module("grad_sample.functorch").prepare_layer(layer)
            hooks.append(layer.register_forward_pre_hook(self._before))
            hooks.append(layer.register_forward_hook(self._after, always_call=True))

    def refuse(self, strays: list[str], owner: object) -> None:
        """Raise ``DefenseError`` if there are weights with a gradient that no layer in train mode has shown."""
        if strays:
            raise DefenseError(
                f"{owner}: {', '.join(sorted(strays)[:3])}: a gradient comes from outside of a layer in train mode"
            )

    def run(self, loss: Loss, *given: Any) -> tuple[Tensor, Pass, list[GradientEdge]]:
        """The loss, its pass, and the edges of the graph at the outputs of layers."""
        self._pass, self._edges = Pass(), []
        try:
            return loss(*given), self._pass, self._edges
        finally:
            # Kept edges would keep the graph, whose hooks keep this object.
            self._pass, self._edges = None, []
            while self._held:
                self._give_back()

    def begin(self) -> None:
        """Note that the backward pass of a batch begins; ``ValueError`` where another has not been followed by a step."""
        if self._ready:
            raise ValueError("each batch needs a step of its own: gradients of another are left")
        if any(weight.requires_grad for weight in self._frozen):
            raise ValueError("a weight is trained that was frozen when the training was protected")
        self._ready = True
        self._strays.clear()

    def guard(self, optimizer: Any, owner: object) -> None:
        """Let an optimizer refuse steps on other gradients than those of one backward pass that ``begin`` knows of."""
        pre_step, zero_grad = optimizer.pre_step, optimizer.zero_grad

        def checked(*given: Any) -> Any:
            if not self._ready:
                raise DefenseError(
                    f"{owner}: a step has no backward pass of its own; use the loss of the protected training"
                )
            self.refuse(self._strays, owner)
            self._ready = False
            return pre_step(*given)

        def zeroed(*given: Any, **named: Any) -> None:
            self._ready = False
            zero_grad(*given, **named)

        optimizer.pre_step, optimizer.zero_grad = checked, zeroed

    def _before(self, module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        shown = self._pass is not None and module.training and torch.is_grad_enabled()
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
        held = self._give_back()
        if not held or output is None or spread_weights(module):
            return None
        if not isinstance(output, Tensor):
            raise ValueError(f"{type(module).__name__} returns {type(output).__name__}, and must return one tensor")
        if not output.requires_grad:
            output = output.detach().requires_grad_()
        self._watch(module, [one.detach() for one in inputs], output, [weight for *_, weight in held])
        shown: Tensor = output
        return shown

    def _give_back(self) -> list[tuple[nn.Module, str, Any]]:
        held = self._held.pop()
        for one, name, weight in held:
            one._parameters[name] = weight
        return held

    def _watch(self, module: nn.Module, inputs: list[Tensor], output: Tensor, weights: list[nn.Parameter]) -> None:
        assert self._pass is not None
        self._pass.uses.update(weights)
        self._edges.append(get_gradient_edge(output))
        versions = [one._version for one in inputs]
        output.register_hook(functools.partial(_arrived, self._pass, module, inputs, versions))  # type: ignore[no-untyped-call]


def _note(strays: list[str], name: str, _: Tensor) -> None:
    strays.append(name)


def _arrived(of: Pass, module: nn.Module, inputs: Any, versions: list[int], gradients: Tensor) -> None:
    if of.seen is None:
        return
    if versions != [one._version for one in inputs]:
        raise ValueError("an operation in place changed what a layer saw")
    of.seen(module, inputs, gradients)


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
