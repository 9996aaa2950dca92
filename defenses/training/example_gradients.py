"""Gradients per example by Opacus: kept for every example, or only their norms (ghost clipping).

Ghost clipping keeps the inputs of each call of a layer and the gradients at its outputs ("book-keeping"). From them come the length
of each example's gradient and then the sum of clipped gradients, so that a share has the length that was measured. Linear layers
need no gradients per example for it; those of other layers are computed twice, one layer at a time.

Source: Li, Tramer, Liang, Hashimoto, "Large Language Models Can Be Strong Differentially Private Learners" (ICLR 2022), section 4;
Bu, Wang, Zha, Karypis, "Differentially Private Optimization on Large Foundation Models" (ICML 2023), book-keeping.
"""

import functools
import math
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from defenses.base import DefenseError
from defenses.functional import clip_factors
from defenses.tensors import Loss
from defenses.training.layer_gradients import (
    example_rows,
    factors_of,
    fewer_factors,
    lengths_of_products,
    sum_of_products,
)
from defenses.training.quiet_import import opacus_module

PER_EXAMPLE, GHOST = "per-example", "ghost"
"""Ways of clipping; both give the same sum, up to rounding."""

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


def attach_hooks(model: nn.Module, owner: object) -> Any:
    """Let the layers of a model show what they see in the passes of a loss; returns Opacus' module around the model.

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
        return _watching()(model, batch_first=True, loss_reduction="mean")
    except (NotImplementedError, ValueError) as error:
        raise DefenseError(f"{owner}: the model has no gradients per example: {error}") from error


@functools.cache
def _watching() -> Any:
    """Opacus' module of the layers that have gradients per example, which does nothing but show them to ``seen``."""

    class Watching(opacus_module("grad_sample").GradSampleModule):  # type: ignore[misc]
        def add_hooks(self, **_: Any) -> None:
            """Weights take no part in the graph within their layer, so that no backward pass computes their gradients."""
            self.seen, self.running, self.passes, self.begun, self.uses = None, False, 0, 0, Counter[Any]()
            self.held: list[list[Any]] = []
            self.shown: list[torch.autograd.graph.GradientEdge] = []
            hooks = self._module.autograd_grad_sample_hooks = []
            for layer in self.iterate_submodules(self._module):
                if type(layer) not in self.GRAD_SAMPLERS:
                    opacus_module("grad_sample.functorch").prepare_layer(layer)
                hooks.append(layer.register_forward_pre_hook(self._before))
                hooks.append(layer.register_forward_hook(self._after, always_call=True))

        def _before(self, module: nn.Module, _: Any) -> None:
            shown = self.running and module.training and torch.is_grad_enabled()
            weights = module.parameters(type(module) not in self.GRAD_SAMPLERS) if shown else ()
            self.held.append([weight for weight in weights if weight.requires_grad])
            for weight in self.held[-1]:
                weight.requires_grad_(False)

        def _after(self, module: nn.Module, inputs: Any, output: Any) -> Any:
            weights = self.held.pop()
            for weight in weights:
                weight.requires_grad_(True)
            if not weights or output is None:
                return None
            if not output.requires_grad:
                output = output.detach().requires_grad_()
            inputs = [one.detach() for one in inputs]
            self.uses.update(weights)
            self.shown.append(torch.autograd.graph.get_gradient_edge(output))
            versions = [one._version for one in inputs]
            output.register_hook(functools.partial(self._arrived, self.passes, module, inputs, versions))
            return output

        def _arrived(self, number: int, module: nn.Module, inputs: Any, versions: list[int], slopes: Tensor) -> None:
            if number != self.begun:
                return
            if versions != [one._version for one in inputs]:
                raise ValueError("an operation in place changed what a layer saw")
            self.seen(module, inputs, slopes)

        @contextmanager
        def watching(self) -> Iterator[int]:
            """Show what layers see in the pass within, once its backward pass has ``begun``; yields the number of the pass."""
            self.passes, self.running = self.passes + 1, True
            self.uses.clear()
            self.shown.clear()
            try:
                yield self.passes
            finally:
                self.running = False

        def begin(self, number: int, count: int, factor: Tensor) -> Tensor:
            """Of a mean over ``count`` examples: the factor that makes it their sum."""
            self.begun = number
            return factor * count

    return Watching


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
            missing = bool((factors == 0).any())
            for weight, sample in zip(self.params, held, strict=True):
                weight.summed_grad = _clipped_sum(sample, factors, missing)

    return ExampleOptimizer


def example_sums(model: nn.Module, count: int) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The sum of clipped gradients after a step without noise on ``count`` examples, and the gradients' lengths; by parameter."""
    trained: dict[str, Any] = {name: weight for name, weight in model.named_parameters() if weight.requires_grad}
    lengths = {
        name: weight._norm_sample if hasattr(weight, "_norm_sample") else _lengths_of(weight.grad_sample)
        for name, weight in trained.items()
    }
    return {name: weight.grad * count for name, weight in trained.items()}, lengths


def example_loss(loss: Loss, watched: Any) -> Loss:
    """The same loss, whose backward pass leaves the gradients per example in ``grad_sample``; it must be a mean over examples.

    ``watched`` is what ``attach_hooks`` returns.
    """
    weights = [weight for weight in watched.parameters() if weight.requires_grad]

    def seen(layer: nn.Module, inputs: list[Tensor], gradients: Tensor) -> None:
        for weight, rows in example_rows(layer, inputs, gradients):
            weight.grad_sample = _added(weight.grad_sample, rows)

    def begin(number: int, count: int, factor: Tensor) -> Tensor:
        if any(weight.grad_sample is not None for weight in weights):
            raise ValueError("a batch has a backward pass before the step of another: each needs its own step")
        watched.seen = seen
        return watched.begin(number, count, factor)  # type: ignore[no-any-return]

    def kept(model: nn.Module, images: Tensor, targets: Tensor) -> Tensor:
        with watched.watching() as number:
            value = loss(model, images, targets)
        value.register_hook(functools.partial(begin, number, len(images)))  # type: ignore[no-untyped-call]
        return value

    return kept


def ghost_loss(loss: Loss, watched: Any, max_norm: float, owner: object) -> Loss:
    """The same loss, whose backward pass leaves the sum of clipped gradients in ``grad``, without gradients per example.

    The loss must be a mean over examples, and depend on the weights through one output of the model alone, (B, ...): else a row of
    the gradients at a layer's outputs is not that of one example. ``watched`` is what ``attach_hooks`` returns.
    """
    weights = [weight for weight in watched.parameters() if weight.requires_grad]

    def ghost(model: nn.Module, images: Tensor, targets: Tensor) -> Tensor:
        seen = _SeenOutputs(model)
        with watched.watching() as number:
            value = loss(seen, images, targets)  # type: ignore[arg-type]
        # Within its layer a weight takes no part in the graph; the layer's output stands for it.
        slopes = torch.autograd.grad(value, [*seen.leaves, *weights, *watched.shown], allow_unused=True)
        if len(seen.leaves) != 1 or (gradient := slopes[0]) is None or any(slope is not None for slope in slopes[1:]):
            raise DefenseError(
                f"{owner}: ghost clipping needs a loss that depends on the weights through one output of the model alone; use "
                f"clipping={PER_EXAMPLE!r}"
            )
        proxy = value.detach().requires_grad_()

        def backward(factor: Tensor) -> None:
            book = _Book(weights, Counter(watched.uses), gradient)
            watched.seen = book.enter
            seen.outputs[0].backward(watched.begin(number, len(images), factor) * gradient)  # type: ignore[no-untyped-call]
            book.set_clipped_sums(max_norm)

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


class _Book:
    """What is kept of each call of a layer until the lengths of all gradients are known."""

    def __init__(self, weights: list[Any], uses: Counter[Any], outputs: Tensor) -> None:
        self.weights, self.uses = weights, uses
        self.rows = dict[Any, Tensor]()
        self.factored: list[tuple[Any, Tensor, Tensor]] = []
        self.again: list[tuple[nn.Module, list[Tensor], Tensor]] = []
        for weight in weights:
            weight._norm_sample, weight.grad = outputs.new_zeros(len(outputs)), torch.zeros_like(weight)

    def enter(self, layer: nn.Module, inputs: list[Tensor], gradients: Tensor) -> None:
        """Keep the gradients per example, or the factors that they are products of, or what both are computed from again."""
        own = [weight for weight in layer.parameters() if weight.requires_grad]
        alone = all(self.uses[weight] == 1 for weight in own)
        if alone and fewer_factors(layer, inputs, gradients):
            g, a = factors_of(layer, inputs, gradients)
            if layer.weight.requires_grad:
                layer.weight._norm_sample = lengths_of_products(g.double(), a.double()).to(gradients.dtype)
                self.factored.append((layer.weight, g, a))
            if layer.bias is not None and layer.bias.requires_grad:
                self._keep(layer.bias, g.sum(1))
            return
        if alone and sum(weight.numel() for weight in own) > inputs[0][:1].numel() + gradients[:1].numel() and not (type(layer) in (nn.Linear, nn.Conv2d)):
            self.again.append((layer, inputs, gradients))
            for weight, rows in example_rows(layer, inputs, gradients):
                weight._norm_sample = _lengths_of(rows)
            return
        for weight, rows in example_rows(layer, inputs, gradients):
            self._keep(weight, rows)

    def _keep(self, weight: Any, rows: Tensor) -> None:
        self.rows[weight] = _added(self.rows.get(weight), rows)

    def set_clipped_sums(self, max_norm: float) -> None:
        """Leave the sum of clipped gradients in ``grad`` and their lengths in ``_norm_sample``; zero for a weight without part."""
        for weight, rows in self.rows.items():
            weight._norm_sample = _lengths_of(rows)
        factors = clip_factors(_together([weight._norm_sample for weight in self.weights]), max_norm)
        kept, missing = factors > 0, bool((factors == 0).any())
        for weight, rows in self.rows.items():
            weight.grad = _clipped_sum(rows, factors, missing)
        for weight, g, a in self.factored:
            if missing:
                g, a = g[kept], a[kept]
            weight.grad = sum_of_products(g, a, factors[kept]).view_as(weight).to(weight.dtype)
        for call in self.again:
            for weight, rows in example_rows(*call):
                # Some operations of a GPU round anew each time: the share counts as no longer than it was.
                shares = factors * clip_factors(_lengths_of(rows), weight._norm_sample)
                weight.grad = _clipped_sum(rows, shares, missing)


def _added(before: Tensor | None, rows: Tensor) -> Tensor:
    """Gradients (B, ...) of a weight over several calls of layers."""
    if before is None:
        return rows
    if len(before) != len(rows):
        raise DefenseError(f"layers see {len(before)} and {len(rows)} examples of one batch")
    return before + rows


def _clipped_sum(gradients: Tensor, factors: Tensor, missing: bool) -> Tensor:
    """Sum of gradients (B, ...) times factors (B,); where the factor is zero, an infinite gradient is none."""
    if missing:
        gradients[factors == 0] = 0.0
    sums = factors.to(gradients.dtype) @ gradients.reshape(len(gradients), math.prod(gradients.shape[1:]))
    return sums.view(gradients.shape[1:])


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
