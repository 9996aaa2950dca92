"""Gradients per example by Opacus: kept for every example, or only their norms (ghost clipping).

Ghost clipping keeps the inputs of each call of a layer and the gradients at its outputs ("book-keeping"). From them come the length
of each example's gradient and then the sum of clipped gradients, so that a share has the length that was measured. Linear layers
need no gradients per example for it; those of other layers are computed twice, one layer at a time.

Source: Li, Tramer, Liang, Hashimoto, "Large Language Models Can Be Strong Differentially Private Learners" (ICLR 2022), section 4;
Bu, Wang, Zha, Karypis, "Differentially Private Optimization on Large Foundation Models" (ICML 2023), book-keeping.
"""

import functools
import math
import warnings
from collections import Counter
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from defenses.base import DefenseError
from defenses.functional import clip_factors
from defenses.tensors import Loss
from defenses.training.quiet_import import opacus_module

PER_EXAMPLE, GHOST = "per-example", "ghost"
"""Ways of clipping; both give the same sum, up to rounding."""

LEAST_PART = 1e-5
"""Of the lengths of a gradient's terms together: its own length counts as no less. Rounding in float64 is some 1e-8 of them."""

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
    kind = _book_keeper() if clipping == GHOST else opacus_module("grad_sample").GradSampleModule
    try:
        watched = kind(model, batch_first=True, loss_reduction="mean")
    except (NotImplementedError, ValueError) as error:
        raise DefenseError(f"{owner}: the model has no gradients per example: {error}") from error
    watched.forbid_grad_accumulation()
    watched.calls = []
    return watched


@functools.cache
def _book_keeper() -> Any:
    """Opacus' module that keeps (layer, its inputs, the gradients (B, ...) at its outputs) of each call of a layer."""

    class BookKeeper(opacus_module("grad_sample").GradSampleModule):  # type: ignore[misc]
        def capture_backprops_hook(self, module: nn.Module, _: Any, gradients: Any, **arranged: Any) -> None:
            kept = self.rearrange_grad_samples(module=module, backprops=gradients[0].detach(), **arranged)
            self.calls.append((module, *kept))

    return BookKeeper


def _linear_terms(calls: list[Any]) -> Iterator[tuple[Any, Tensor, Tensor]]:
    """Weights of linear layers, with g (B, T, F) and a (B, T, A) in float64: the gradient is the sum of g_t a_t^T over tokens t."""
    for layer, inputs, gradients in calls:
        g, a = (rows.double().reshape(len(rows), -1, rows.shape[-1]) for rows in (gradients, inputs[0]))
        for weight, of in ((layer.weight, a), (layer.bias, a.new_ones(*a.shape[:2], 1))):
            if weight is not None and weight.requires_grad:
                yield weight, g, of


def _linear_lengths(g: Tensor, a: Tensor) -> Tensor:
    """Lengths (B,) of sums of g_t a_t^T. The squared length is the sum of (g_s g_t) (a_s a_t), which rounds if terms cancel."""
    squared = ((g @ g.mT) * (a @ a.mT)).sum((1, 2)).clamp(min=0)
    return squared.sqrt().maximum(LEAST_PART * (g.norm(dim=2) * a.norm(dim=2)).sum(1))


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
            count = next((len(sample) for sample in held if sample is not None), 1)
            for weight, sample in zip(self.params, held, strict=True):
                weight.grad_sample = weight.new_zeros((count, *weight.shape)) if sample is None else sample
            return [weight.grad_sample for weight in self.params]

        def clip_and_accumulate(self) -> None:
            held = self.grad_samples
            factors = clip_factors(_together([_lengths_of(sample) for sample in held]), self.max_grad_norm)
            for weight, sample in zip(self.params, held, strict=True):
                weight.summed_grad = _clipped_sum(sample, factors)

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

    The loss must be a mean over examples, and depend on the weights through one output of the model alone, (B, ...): else a row of
    the gradients at a layer's outputs is not that of one example. ``watched`` is what ``attach_hooks`` returns with ``GHOST``.
    """
    weights = [weight for weight in watched.parameters() if weight.requires_grad]

    def ghost(model: nn.Module, images: Tensor, targets: Tensor) -> Tensor:
        forget(model)
        seen = _SeenOutputs(model)
        value = loss(seen, images, targets)  # type: ignore[arg-type]
        slopes = torch.autograd.grad(value, [*seen.leaves, *weights], allow_unused=True)
        if len(seen.leaves) != 1 or (gradient := slopes[0]) is None or any(slope is not None for slope in slopes[1:]):
            raise DefenseError(
                f"{owner}: ghost clipping needs a loss that depends on the weights through one output of the model alone; use "
                f"clipping={PER_EXAMPLE!r}"
            )
        proxy = value.detach().requires_grad_()

        def backward(factor: Tensor) -> None:
            watched.calls.clear()
            seen.outputs[0].backward(factor * gradient)  # type: ignore[no-untyped-call]
            _set_clipped_sums(watched, weights, gradient, max_norm)

        proxy.register_hook(backward)  # type: ignore[no-untyped-call]  # later, because zero_grad may come first
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


def _set_clipped_sums(watched: Any, weights: list[Any], outputs: Tensor, max_norm: float) -> None:
    """Leave the sum of clipped gradients in ``grad`` and their lengths in ``_norm_sample``; zero for a weight without part."""
    calls, watched.calls = watched.calls, []
    used = Counter(weight for layer, *_ in calls for weight in layer.parameters())
    short = [type(layer) is nn.Linear and all(used[p] == 1 for p in layer.parameters()) for layer, *_ in calls]
    linear, others = ([call for call, fits in zip(calls, short, strict=True) if fits == way] for way in (True, False))
    for weight in weights:
        weight._norm_sample, weight.grad = outputs.new_zeros(len(outputs)), torch.zeros_like(weight)
    for weight, g, a in _linear_terms(linear):
        weight._norm_sample = _linear_lengths(g, a).to(outputs.dtype)
    for weight, gradients in _gradients(watched, others):
        weight._norm_sample = _lengths_of(gradients)
    factors = clip_factors(_together([weight._norm_sample for weight in weights]), max_norm)
    kept = factors > 0
    for weight, g, a in _linear_terms(linear):
        clipped = torch.einsum("nti,ntj->ij", g[kept] * factors[kept].view(-1, 1, 1), a[kept])
        weight.grad.copy_(clipped.view_as(weight))
    for weight, gradients in _gradients(watched, others):
        # Some operations of a GPU round anew each time: the share counts as no longer than it was.
        weight.grad = _clipped_sum(gradients, factors * clip_factors(_lengths_of(gradients), weight._norm_sample))


def _gradients(watched: Any, calls: list[Any]) -> Iterator[tuple[Any, Tensor]]:
    """Each weight and its gradients (B, ...) over all calls of layers; they are computed call by call."""
    left, held = Counter(weight for layer, *_ in calls for weight in layer.parameters()), dict[Any, Tensor]()
    by_functions = opacus_module("grad_sample.functorch").ft_compute_per_sample_gradient
    for layer, inputs, gradients in calls:
        for weight, rows in watched.GRAD_SAMPLERS.get(type(layer), by_functions)(layer, inputs, gradients).items():
            held[weight], left[weight] = held[weight] + rows if weight in held else rows, left[weight] - 1
            if not left[weight] and weight.requires_grad:
                yield weight, held.pop(weight)


def _clipped_sum(gradients: Tensor, factors: Tensor) -> Tensor:
    """Sum of gradients (B, ...) times factors (B,); where the factor is zero, an infinite gradient is none."""
    gradients[factors == 0] = 0.0
    return torch.einsum("i,i...", factors.to(gradients.dtype), gradients)


def _lengths_of(gradients: Tensor) -> Tensor:
    """Lengths (B,) of tensors (B, ...), which may have no entries."""
    lengths: Tensor = gradients.reshape(len(gradients), math.prod(gradients.shape[1:])).norm(dim=1)
    return lengths


def _together(by_weight: list[Tensor]) -> Tensor:
    """Lengths (B,) of vectors from those of their parts."""
    if len(counts := {len(part) for part in by_weight}) > 1:
        raise DefenseError(f"layers see {' and '.join(map(str, sorted(counts)))} examples of one batch")
    lengths: Tensor = torch.stack(by_weight).norm(dim=0)
    return lengths
