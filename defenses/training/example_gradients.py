"""Gradients per example by Opacus: kept for every example, or only their norms (ghost clipping).

Ghost clipping makes two backward passes. The first gives the norm of each example's gradient, layer by layer. The second weights
each example's loss by its clipping factor, so that the sum of clipped gradients arises without the gradients themselves. Where
there is no shortcut for a layer's norm (all but embeddings and linear layers), the layer's gradients are computed and dropped.

Source: Li, Tramer, Liang, Hashimoto, "Large Language Models Can Be Strong Differentially Private Learners" (ICLR 2022), section 4;
Lee, Kifer, "Scaling up Differentially Private Deep Learning with Fast Per-Example Gradient Clipping" (PoPETs 2021).
"""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from defenses.base import DefenseError, Loss
from defenses.functional import clip_factors
from defenses.training.quiet_import import opacus_module

PER_EXAMPLE, GHOST = "per-example", "ghost"
"""Ways of clipping; both give the same sum, up to rounding."""

LEAST_PART = 1e-5
"""Of the lengths of a gradient's terms together: its own length counts as no less. Rounding in float32 is some 1e-7 of them."""

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
    if clipping == GHOST:
        watched.NORM_SAMPLERS = {**watched.NORM_SAMPLERS, nn.Linear: _linear_lengths}
    return watched


def _linear_lengths(layer: nn.Linear, inputs: Sequence[Tensor], gradients: Tensor) -> dict[Tensor, Tensor]:
    """Lengths (B,) of the gradients of a linear layer's weights, from its inputs and the gradients (B, ..., F) at its outputs.

    The gradient of the weight is the sum of g_t a_t^T over tokens t, whose squared length is the sum of (g_s g_t) (a_s a_t). Where
    its terms cancel, rounding would decide, here and in the second pass: the length is at least ``LEAST_PART`` of the terms'.
    In float32, as in Opacus' own shortcut, it could come out as 0, and the example would not be clipped.
    """
    g, a = (one.double().reshape(len(one), -1, one.shape[-1]) for one in (gradients, inputs[0]))
    ones = a.new_ones(*a.shape[:2], 1)
    found = {}
    for weight, of in ((layer.weight, a), (layer.bias, ones)):
        if weight is not None and weight.requires_grad:
            squared = ((g @ g.mT) * (of @ of.mT)).sum((1, 2)).clamp(min=0)
            terms = (g.norm(dim=2) * of.norm(dim=2)).sum(1)
            found[weight] = squared.sqrt().maximum(LEAST_PART * terms).to(gradients.dtype)
    return found


def forget(model: nn.Module) -> None:
    """Drop what Opacus keeps of a forward pass without a backward pass, as of a layer whose outputs the loss does not use."""
    for module in model.modules():
        for name in ("activations", "max_batch_len"):
            module.__dict__.pop(name, None)
    for weight in model.parameters():
        weight._forward_counter = 0  # type: ignore[attr-defined]


@functools.cache
def example_optimizer() -> Any:
    """Opacus' optimizer of gradients per example, in which one that is not finite counts as zero, and so does a missing one."""

    class ExampleOptimizer(opacus_module("optimizers").DPOptimizer):  # type: ignore[misc]
        @property
        def grad_samples(self) -> list[Tensor]:
            held = [getattr(weight, "grad_sample", None) for weight in self.params]
            count = next((len(one) for one in held if one is not None), 1)
            for weight, one in zip(self.params, held, strict=True):
                weight.grad_sample = weight.new_zeros((count, *weight.shape)) if one is None else one
            return [weight.grad_sample for weight in self.params]

        def clip_and_accumulate(self) -> None:
            held = self.grad_samples
            factors = clip_factors(_together([_lengths_of(one) for one in held]), self.max_grad_norm)
            for weight, one in zip(self.params, held, strict=True):
                one[factors == 0] = 0.0
                weight.summed_grad = torch.einsum("i,i...", factors.to(one.dtype), one)

    return ExampleOptimizer


def example_sums(model: nn.Module, count: int) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The sum of clipped gradients after a step without noise on ``count`` examples, and the gradients' lengths; by parameter."""
    trained: dict[str, Any] = {name: weight for name, weight in model.named_parameters() if weight.requires_grad}
    lengths = {
        name: weight._norm_sample if hasattr(weight, "_norm_sample") else _lengths_of(weight.grad_sample)
        for name, weight in trained.items()
    }
    return {name: weight.grad * count for name, weight in trained.items()}, lengths


def ghost_loss(loss: Loss, watched: Any, max_norm: float, owner: object) -> Loss:
    """The same loss, whose backward pass leaves the sum of clipped gradients in ``grad``, without gradients per example.

    The loss must be a mean over examples, and depend on the weights through one output of the model alone, (B, ...). Otherwise
    a factor for each row of the output would not clip each example.

    An example whose gradient is not finite is left out, and both passes begin anew: a factor of zero would not remove it.

    Args:
        loss: Mean loss of a batch.
        watched: As ``attach_hooks`` returns it with ``GHOST``.
        max_norm: The clipping norm.
        owner: Named in errors.
    """
    weights = [weight for weight in watched.parameters() if weight.requires_grad]

    def forward(model: nn.Module, images: Tensor, targets: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The loss, the model's outputs, and the gradient of the loss at them."""
        forget(model)
        seen = _SeenOutputs(model)
        value = loss(seen, images, targets)  # type: ignore[arg-type]
        found = torch.autograd.grad(value, [*seen.leaves, *weights], allow_unused=True, retain_graph=True)
        if len(seen.leaves) != 1 or found[0] is None or any(one is not None for one in found[1:]):
            raise DefenseError(
                f"{owner}: ghost clipping needs a loss that depends on the weights through one output of the model alone; use "
                f"clipping={PER_EXAMPLE!r}"
            )
        return value, seen.outputs[0], found[0]

    def backward(
        model: nn.Module, images: Tensor, targets: Tensor, outputs: Tensor, gradient: Tensor, factor: Tensor
    ) -> None:
        factors = clip_factors(_lengths(weights, outputs, factor * gradient), max_norm)
        while not (kept := factors > 0).all():
            images, targets = images[kept], targets[kept]
            factors = factors[kept]
            if len(images):
                with torch.enable_grad():
                    _, outputs, gradient = forward(model, images, targets)
                factors = clip_factors(_lengths(weights, outputs, factor * gradient), max_norm)
        _add_clipped(watched, weights, outputs, factor * gradient, factors)

    def ghost(model: nn.Module, images: Tensor, targets: Tensor) -> Tensor:
        value, outputs, gradient = forward(model, images, targets)
        proxy = value.detach().requires_grad_()
        # At the time of backward, because zero_grad may come between the loss and it.
        proxy.register_hook(lambda factor: backward(model, images, targets, outputs, gradient, factor))  # type: ignore[no-untyped-call]
        return proxy

    return ghost


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


def _lengths(weights: list[Any], outputs: Tensor, gradient: Tensor) -> Tensor:
    """Lengths (B,) of the gradients of examples, by a first backward pass; a weight that takes no part adds nothing."""
    # Opacus leaves the norms of a layer that takes no part in a batch as they were: they are of examples of an earlier batch.
    for weight in weights:
        weight._norm_sample = None
    outputs.backward(gradient, retain_graph=True)  # type: ignore[no-untyped-call]
    for weight in weights:
        weight._norm_sample = gradient.new_zeros(len(gradient)) if weight._norm_sample is None else weight._norm_sample
    return _together([weight._norm_sample for weight in weights])


def _lengths_of(gradients: Tensor) -> Tensor:
    """Lengths (B,) of tensors (B, ...), which may have no entries."""
    lengths: Tensor = gradients.reshape(len(gradients), math.prod(gradients.shape[1:])).norm(dim=1)
    return lengths


def _together(by_weight: list[Tensor]) -> Tensor:
    """Lengths (B,) of vectors from those of their parts."""
    if len(counts := {len(one) for one in by_weight}) > 1:
        raise DefenseError(f"layers see {' and '.join(map(str, sorted(counts)))} examples of one batch")
    lengths: Tensor = torch.stack(by_weight).norm(dim=0)
    return lengths


def _add_clipped(watched: Any, weights: list[Any], outputs: Tensor, gradient: Tensor, factors: Tensor) -> None:
    """Leave the sum of clipped gradients in ``grad``, by a second backward pass; that of a weight without a known norm is zero."""
    for weight in weights:
        weight.grad = None
    if len(factors):
        watched.disable_hooks()
        try:
            # Times the number of examples: the loss is their mean, and the optimizer divides by the expected number.
            scaled = gradient * factors.view(-1, *[1] * (gradient.dim() - 1)) * len(gradient)
            outputs.backward(scaled)  # type: ignore[no-untyped-call]
        finally:
            watched.enable_hooks()
    for weight in weights:
        if weight.grad is None or not weight._norm_sample.any():
            weight.grad = torch.zeros_like(weight)
