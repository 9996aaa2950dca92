"""Gradients per example by Opacus: kept for every example, or only their norms (ghost clipping).

Ghost clipping makes two backward passes. The first gives the norm of each example's gradient, layer by layer. The second weights
each example's loss by its clipping factor, so that the sum of clipped gradients arises without the gradients themselves. Where
Opacus knows no shortcut for a layer's norm (all but embeddings and linear layers on 2 or 3 dimensions), the layer's gradients are
computed and dropped.

Source: Li, Tramer, Liang, Hashimoto, "Large Language Models Can Be Strong Differentially Private Learners" (ICLR 2022), section 4;
Lee, Kifer, "Scaling up Differentially Private Deep Learning with Fast Per-Example Gradient Clipping" (PoPETs 2021).
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from defenses.base import DefenseError, Loss, Shape
from defenses.training.quiet_import import opacus_module

PER_EXAMPLE, GHOST = "per-example", "ghost"
"""Ways of clipping; both give the same sum, up to rounding."""

HOOK_WARNING = "Full backward hook is firing when gradients are computed with respect to module outputs"
"""How a warning of torch begins that every first layer under Opacus would cause."""

REPLACING = "in the function that builds the model, return opacus.validators.ModuleValidator.fix(model)"
"""What a model of one's own can do about layers that Opacus can replace."""

_LEFT_BY_HOOKS = (
    *("activations", "max_batch_len", "ft_compute_sample_grad"),  # on layers
    *("grad_sample", "summed_grad", "_forward_counter", "_current_grad_sample", "_norm_sample"),  # on parameters
)


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


def attach_hooks(model: nn.Module, owner: object, clipping: str = PER_EXAMPLE) -> Any:
    """Let Opacus collect gradients per example, or their norms, in train mode; returns its module around the model.

    Raises:
        DefenseError: When the model has BatchNorm or another layer without per-example gradients; ``owner`` is named.
    """
    # Opacus watches layers that see the images themselves, of which no gradient is computed. This warning of torch is about that.
    warnings.filterwarnings("ignore", HOOK_WARNING, UserWarning)
    check_layers(model, owner)
    remove_hooks(model)
    for module in model.modules():
        # Backward hooks cannot watch a layer that overwrites its input; the function computed is the same.
        if getattr(module, "inplace", False):
            module.inplace = False  # type: ignore[assignment]
    name = "GradSampleModuleFastGradientClipping" if clipping == GHOST else "GradSampleModule"
    try:
        watched = getattr(opacus_module("grad_sample"), name)(model, batch_first=True, loss_reduction="mean")
    except (NotImplementedError, ValueError) as error:
        raise DefenseError(f"{owner}: the model has no gradients per example: {error}") from error
    watched.forbid_grad_accumulation()
    return watched


def ghost_loss(
    loss: Loss, watched: Any, optimizer: Any, owner: object, measure: Callable[[Tensor], None] = lambda _: None
) -> Loss:
    """The same loss, whose backward pass leaves the sum of clipped gradients in ``grad``, without gradients per example.

    The loss must be a mean over examples, and depend on the weights through one output of the model alone, (B, ...). Otherwise
    a factor for each row of the output would not clip each example.

    Args:
        loss: Mean loss of a batch.
        watched: As ``attach_hooks`` returns it with ``GHOST``.
        optimizer: Its ``max_grad_norm`` is the clipping norm at the time of each backward pass.
        owner: Named in errors.
        measure: Receives the lengths (B,) of the examples' gradients in each backward pass.
    """

    def ghost(model: nn.Module, images: Tensor, targets: Tensor) -> Tensor:
        seen = _SeenOutputs(model)
        try:
            value = loss(seen, images, targets)  # type: ignore[arg-type]
        except NotImplementedError as error:  # a layer that is used twice
            raise DefenseError(
                f"{owner}: the model has no ghost clipping: {error}; use clipping={PER_EXAMPLE!r}"
            ) from error
        weights: list[Tensor] = [weight for weight in model.parameters() if weight.requires_grad]
        found = torch.autograd.grad(value, [*seen.leaves, *weights], allow_unused=True, retain_graph=True)
        if len(seen.leaves) != 1 or found[0] is None or any(one is not None for one in found[1:]):
            raise DefenseError(
                f"{owner}: ghost clipping needs a loss that depends on the weights through one output of the model alone; use "
                f"clipping={PER_EXAMPLE!r}"
            )
        proxy = value.detach().requires_grad_()
        # At the time of backward, because zero_grad may come between the loss and it.
        proxy.register_hook(  # type: ignore[no-untyped-call]
            lambda factor: _two_passes(seen.outputs[0], factor * found[0], watched, optimizer, owner, measure)
        )
        return proxy

    return ghost


def try_ghost(model: nn.Module, input_shape: Shape, owner: object) -> None:
    """Make both passes of ghost clipping for two black images through a copy of a model.

    Raises:
        DefenseError: When ghost clipping cannot handle the model; ``owner`` is named.
    """
    copied = copy.deepcopy(model).train()
    watched = attach_hooks(copied, owner, GHOST)

    def distance(model: nn.Module, images: Tensor, targets: Tensor) -> Tensor:
        squares: Tensor = (model(images).flatten(1) - targets).square().mean()
        return squares

    device = next(copied.parameters()).device
    images, norm = torch.zeros(2, *input_shape, device=device), SimpleNamespace(max_grad_norm=1.0)
    ghost_loss(distance, watched, norm, owner)(copied, images, images.new_zeros(2, 1)).backward()  # type: ignore[no-untyped-call]


class _SeenOutputs:
    """A model whose outputs are cut from its graph and kept; all else of it is the model's."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self.outputs: list[Tensor] = []
        self.leaves: list[Tensor] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def __call__(self, *inputs: Tensor) -> Tensor:
        output: Tensor = self._model(*inputs)
        self.outputs.append(output)
        self.leaves.append(output.detach().requires_grad_())
        return self.leaves[-1]


def _two_passes(
    outputs: Tensor,
    gradient: Tensor,
    watched: Any,
    optimizer: Any,
    owner: object,
    measure: Callable[[Tensor], None],
) -> None:
    named = {name: weight for name, weight in watched.named_parameters() if weight.requires_grad}
    weights = list(named.values())
    # Opacus leaves the norms of a layer that takes no part in a batch as they were: they are of examples of an earlier batch.
    for weight in weights:
        weight._norm_sample = None
    outputs.backward(gradient, retain_graph=True)  # type: ignore[no-untyped-call]
    missing = [name for name, weight in named.items() if weight._norm_sample is None]
    if missing:
        raise DefenseError(
            f"{owner}: ghost clipping knows no gradient norm of {', '.join(missing[:3])}, which took no part in a batch or belongs "
            "to a layer with inputs of more than 3 dimensions; allowed: a model whose weights all act in each batch"
        )
    norms = watched.get_norm_sample()
    measure(norms)
    factors = (optimizer.max_grad_norm / (norms + 1e-6)).clamp(max=1.0)  # as Opacus clips gradients that are kept
    for weight in weights:
        weight.grad = None
    watched.disable_hooks()
    try:
        # Times the number of examples: the loss is their mean, and the optimizer divides by the expected number.
        scaled = gradient * factors.view(-1, *[1] * (gradient.dim() - 1)) * len(gradient)
        outputs.backward(scaled)  # type: ignore[no-untyped-call]
    finally:
        watched.enable_hooks()
    for weight in weights:
        if weight.grad is None:
            weight.grad = torch.zeros_like(weight)
