"""Gradients per example: kept for every example, or only their norms (ghost clipping).

Ghost clipping keeps the inputs of each call of a layer and the gradients at its output ("book-keeping"), or the gradients per
example where these have fewer numbers. From them come the length of each example's gradient and then the sum of clipped
gradients, so that a share has the length that was measured.

Source: Li, Tramer, Liang, Hashimoto, "Large Language Models Can Be Strong Differentially Private Learners" (ICLR 2022), section 4;
Bu, Wang, Zha, Karypis, "Differentially Private Optimization on Large Foundation Models" (ICML 2023), book-keeping; Bu, Mao, Xu,
"Scalable and Efficient Training of Large Convolutional Neural Networks with Differential Privacy" (NeurIPS 2022), choice by layer.
"""

import functools
from collections import Counter
from typing import Any

import torch
from torch import Tensor, nn

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
from defenses.training.watched_layers import Pass, WatchedLayers

PER_EXAMPLE, GHOST = "per-example", "ghost"
"""Ways of clipping; both give the same sum, up to rounding."""


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


def example_loss(loss: Loss, watched: WatchedLayers) -> Loss:
    """The same loss, whose backward pass leaves the gradients per example in ``grad_sample``; it must be a mean over examples."""

    def seen(layer: nn.Module, inputs: list[Tensor], gradients: Tensor) -> None:
        for weight, rows in example_rows(layer, inputs, gradients):
            weight.grad_sample = _added(weight.grad_sample, rows)

    def begin(of: Pass, count: int, factor: Tensor) -> Tensor:
        watched.begin()
        of.seen = seen
        return factor * count

    def kept(model: nn.Module, images: Tensor, targets: Tensor) -> Tensor:
        value, of, _ = watched.run(loss, model, images, targets)
        value.register_hook(functools.partial(begin, of, len(images)))  # type: ignore[no-untyped-call]
        return value

    return kept


def ghost_loss(loss: Loss, watched: WatchedLayers, max_norm: float, owner: object) -> Loss:
    """The same loss, whose backward pass leaves the sum of clipped gradients in ``grad``, without gradients per example.

    The loss must be a mean over examples, and depend on the weights through one output of the model alone, (B, ...): else a row of
    the gradients at a layer's outputs is not that of one example.
    """

    def ghost(model: nn.Module, images: Tensor, targets: Tensor) -> Tensor:
        seen = _SeenOutputs(model)
        value, of, edges = watched.run(loss, seen, images, targets)
        # Within its layer a weight takes no part in the graph: the layer's output stands for it.
        slopes = torch.autograd.grad(value, [*seen.leaves, *watched.weights, *edges], allow_unused=True)
        edges.clear()
        if len(seen.leaves) != 1 or (gradient := slopes[0]) is None or any(slope is not None for slope in slopes[1:]):
            raise DefenseError(
                f"{owner}: ghost clipping needs a loss that depends on the weights through one output of the model alone; use "
                f"clipping={PER_EXAMPLE!r}"
            )
        proxy = value.detach().requires_grad_()

        def backward(factor: Tensor) -> None:
            watched.begin()
            book = _Book(watched.weights, of.uses, gradient)
            of.seen = book.enter
            for weight in watched.weights:
                weight.grad = None
            seen.outputs[0].backward(factor * len(images) * gradient)  # type: ignore[no-untyped-call]
            of.seen = None
            watched.refuse([name for weight, name in watched.names.items() if weight.grad is not None], owner)
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

    def __init__(self, weights: list[Any], uses: Counter[nn.Parameter], outputs: Tensor) -> None:
        self._weights, self._uses = weights, uses
        self._rows = dict[Any, Tensor]()
        self._factored = list[tuple[Any, Tensor, Tensor]]()
        for weight in self._weights:
            weight._norm_sample = outputs.new_zeros(len(outputs))

    def enter(self, layer: Any, inputs: list[Tensor], gradients: Tensor) -> None:
        """Keep gradients per example, or the factors that they are sums of products of, whichever are fewer numbers."""
        if all(self._uses[weight] < 2 for weight in layer.parameters()) and fewer_factors(layer, gradients):
            g, a = factors_of(layer, inputs, gradients)
            if layer.weight.requires_grad:
                layer.weight._norm_sample = lengths_of_products(g.double(), a.double()).to(gradients.dtype)
                self._factored.append((layer.weight, g, a))
            if layer.bias is not None and layer.bias.requires_grad:
                self._rows[layer.bias] = g.sum(1)
            return
        for weight, rows in example_rows(layer, inputs, gradients):
            self._rows[weight] = _added(self._rows.get(weight), rows)

    def set_clipped_sums(self, max_norm: float) -> None:
        """Leave the sum of clipped gradients in ``grad`` and their lengths in ``_norm_sample``; zero for a weight without part."""
        for weight, rows in self._rows.items():
            weight._norm_sample = _lengths_of(rows)
        factors = clip_factors(_together([weight._norm_sample for weight in self._weights]), max_norm)
        kept, missing = factors > 0, bool((factors == 0).any())
        for weight in self._weights:
            weight.grad = torch.zeros_like(weight)
        for weight, rows in self._rows.items():
            weight.grad = _clipped_sum(rows, factors, missing)
        for weight, g, a in self._factored:
            some = (g[kept], a[kept], factors[kept]) if missing else (g, a, factors)
            weight.grad.copy_(sum_of_products(*some).view_as(weight))


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
        gradients = gradients.masked_fill((factors == 0).view(-1, *[1] * (gradients.dim() - 1)), 0.0)
    # As they lie in memory: one pass, and no copy.
    order = sorted(range(1, gradients.dim()), key=gradients.stride().__getitem__, reverse=True)
    flat = gradients.permute(0, *order).flatten(1) if order else gradients.view(-1, 1)
    sums = (factors.to(gradients.dtype) @ flat).view([gradients.shape[axis] for axis in order])
    return sums.permute([order.index(axis) for axis in range(1, gradients.dim())]).contiguous()


def _lengths_of(gradients: Tensor) -> Tensor:
    """Lengths (B,) of tensors (B, ...), which may have no entries."""
    return (
        torch.linalg.vector_norm(gradients, dim=tuple(range(1, gradients.dim())))
        if gradients.dim() > 1
        else gradients.abs()
    )


def _together(by_weight: list[Tensor]) -> Tensor:
    """Lengths (B,) of vectors from those of their parts."""
    if len(counts := {len(part) for part in by_weight}) > 1:
        raise DefenseError(f"layers see {' and '.join(map(str, sorted(counts)))} examples of one batch")
    lengths: Tensor = torch.stack(by_weight).norm(dim=0)
    return lengths
