"""Gradients of single examples, many at once: how alike those of many points are to that of the point that they lead to.

A loop over examples spends its time on overhead, and one gradient of a batch mixes its examples. Here one forward and one backward
pass of a batch leave, at every layer with parameters, what went in and what came back; the gradient of each example follows from
the two, layer by layer, so that those of one layer are held at a time.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from simulations.search.gradients.folding import FoldedConv, fold
from simulations.search.gradients.layer_gradients import GradientError, Passed, gradients_of, is_known

MOST_BYTES = 1 << 27
"""Of what a pass keeps and of one layer's gradients: larger pieces are no faster."""


class Similarities(NamedTuple):
    """How alike gradients are, by the two measures that go under the name GradSim; the same shape and range, [-1, 1].

    Attributes:
        whole: The cosine of the whole gradients, all parameters as one vector (Eq. 5 of ATS).
        per_tensor: The unweighted mean over parameter tensors of their own cosines, which the authors' released code computes.
    """

    whole: Tensor
    per_tensor: Tensor


class ExampleGradients:
    """Gradients of the cross-entropy of single examples by all parameters, of one model in eval mode.

    Args:
        model: Copied; later changes of its weights change nothing here.

    Raises:
        GradientError: When a layer with parameters is none of Conv2d (padded by zeros), Linear, GroupNorm, LayerNorm, BatchNorm.
    """

    def __init__(self, model: nn.Module) -> None:
        self._bytes: dict[torch.Size, int] = {}
        self.model = copy.deepcopy(model).requires_grad_(True).eval()
        self.layers = {
            name: layer
            for name, layer in self.model.named_modules()
            if next(layer.parameters(recurse=False), None) is not None
        }
        for name, layer in self.layers.items():
            if not is_known(layer):
                raise GradientError(
                    f"the gradients of single examples by layer {name!r} ({type(layer).__name__}) are not known here; those by "
                    "Conv2d with padding by zeros, Linear, GroupNorm, LayerNorm and BatchNorm are"
                )
        self._passing = fold(self.model)
        self._layers = {
            name: layer
            for name, layer in self._passing.named_modules()
            if isinstance(layer, FoldedConv) or (name in self.layers and not isinstance(layer, nn.Identity))
        }

    def verify(self, shape: Sequence[int], classes: int) -> None:
        """Compares with autograd, one random image after the other: a model may use its layers in ways that are not foreseen here.

        Args:
            shape: (C, H, W) of an image.
            classes: Number of them.

        Raises:
            GradientError: When a gradient is another, or cannot be worked out.
        """
        generator = torch.Generator().manual_seed(0)
        images = torch.randn(2, *shape, generator=generator).double()
        targets = F.one_hot(torch.arange(2) % classes, classes).double()
        exact = ExampleGradients(self.model.cpu().double())
        parameters = [one for layer in exact.layers.values() for one in layer.parameters(recurse=False)]
        try:
            ours = list(exact.of(images, targets))
            theirs = [
                torch.autograd.grad(F.cross_entropy(exact.model(x[None]), y[None]), parameters, allow_unused=True)
                for x, y in zip(images, targets, strict=True)
            ]
        except GradientError:
            raise
        except (RuntimeError, ValueError) as error:
            raise GradientError(f"the gradients of single examples cannot be worked out here: {error}") from error
        known = [torch.stack(column).flatten(1) for column in zip(*theirs, strict=True) if column[0] is not None]
        alike = len(ours) == len(known) and all(
            mine.shape == own.shape and torch.allclose(mine, own, rtol=1e-5, atol=1e-9)
            for mine, own in zip(ours, known, strict=True)
        )
        if not alike:
            raise GradientError(
                "the gradients of single examples, as they are worked out here, are not those of autograd: the model uses its "
                "layers, or their weights, outside of their own passes, or mixes the examples of a batch"
            )

    def of(self, images: Tensor, targets: Tensor) -> Iterator[Tensor]:
        """The gradients of single examples, one parameter tensor after the other.

        Args:
            images: (B, C, H, W), normalised.
            targets: (B, K), class probabilities.

        Yields:
            (B, numbers in the parameter tensor); layers in the model's order, the weight of each before its bias.
        """
        for layer, passed in self._passes(images, targets):
            yield from (gradient.flatten(1) for gradient in gradients_of(layer, passed))

    def similarities(self, points: Tensor, targets: Tensor, starts: Sequence[Tensor] | None = None) -> Similarities:
        """How alike the gradient of each point and that of the last point of the same image are, by both measures in one pass.

        Args:
            points: (I, J, C, H, W), normalised; the last of the J points is the one that the others are compared with.
            targets: (I, K), class probabilities, the same for all points of an image.
            starts: What ``of`` gave for another point of each image, which is compared, too, as the first.

        Returns:
            (I, J - 1), or (I, J) with ``starts``, of each; a cosine is 0 where a gradient vanishes.
        """
        shape = points.shape[2:]
        if shape not in self._bytes:  # it takes a pass
            self._bytes[shape] = self.bytes_per_example(points[0, :1], targets[:1])
        size = max(1, MOST_BYTES // (self._bytes[shape] * points.shape[1]))
        found = []
        for at in range(0, len(points), size):
            part = slice(at, at + size)
            own = None if starts is None else [start[part] for start in starts]
            found.append(self._similarities(points[part], targets[part], own))
        return Similarities(*(torch.cat(parts) for parts in zip(*found, strict=True)))

    def _similarities(self, points: Tensor, targets: Tensor, starts: list[Tensor] | None) -> Similarities:
        images, count = points.shape[:2]
        products, norms, lasts = [], [], []
        numbers = iter(starts or ())
        for layer, passed in self._passes(points.flatten(0, 1), targets.repeat_interleave(count, 0)):
            for dots, squares, last in _products(layer, passed, images):
                if starts is not None:
                    start = next(numbers)
                    dots = torch.cat([torch.einsum("ip,ip->i", start, last()).unsqueeze(1), dots], 1)
                    squares = torch.cat([start.square().sum(1, keepdim=True), squares], 1)
                products.append(dots.double())
                norms.append(squares[:, :-1].double())
                lasts.append(squares[:, -1:].double())
        a, b, c = torch.stack(products), torch.stack(norms), torch.stack(lasts)
        return Similarities(_cosine(a.sum(0), b.sum(0), c.sum(0)), _cosine(a, b, c).mean(0))

    def _passes(self, images: Tensor, targets: Tensor) -> Iterator[tuple[nn.Module, Passed]]:
        """One forward and one backward pass; of each layer what passed it, which nothing here keeps once it was handed on."""
        given: dict[str, Tensor] = {}
        made: dict[str, Tensor] = {}

        def watch(name: str) -> None:
            def hook(_: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
                if name in given:
                    raise GradientError(
                        f"layer {name!r} is used twice in a pass, and its gradients cannot be told apart"
                    )
                given[name], made[name] = inputs[0].detach(), output

            hooks.append(self._layers[name].register_forward_hook(hook))

        hooks: list[torch.utils.hooks.RemovableHandle] = []
        try:
            for name in self._layers:
                watch(name)
            with torch.enable_grad():
                # The weights of folded layers know of no gradients: those by what layers make hang from the images.
                logits = self._passing(images.detach().requires_grad_())
                loss = F.cross_entropy(logits, targets, reduction="sum")
        finally:
            for one in hooks:
                one.remove()
        # Gradients by what layers make, and none by parameters: those would mix the examples, at half the cost of the pass.
        found = dict(zip(made, torch.autograd.grad(loss, list(made.values()), allow_unused=True), strict=True))
        del loss
        made.clear()
        for name, layer in self._layers.items():
            returned = found.pop(name, None)
            if returned is None:  # the loss does not depend on it
                continue
            yield layer, Passed(given.pop(name), returned)

    def bytes_per_example(self, images: Tensor, targets: Tensor) -> int:
        """Bytes that an example needs at the peak: all that passes the layers, and the largest layer's gradient and inputs."""
        held, largest = 0, 0
        for layer, passed in self._passes(images, targets):
            held += passed.given.numel() + passed.returned.numel()
            own = layer.conv if isinstance(layer, FoldedConv) else layer
            weight = sum(parameter.numel() for parameter in own.parameters(recurse=False))
            unfolded = own.weight[0].numel() * passed.returned[0, 0].numel() if isinstance(own, nn.Conv2d) else 0
            largest = max(largest, weight + unfolded)
        return 4 * (held // len(images) + largest)


def _cosine(products: Tensor, norms: Tensor, last: Tensor) -> Tensor:
    length = (norms * last).sqrt()
    return torch.where(length > 0, products / length.clamp(min=torch.finfo(length.dtype).tiny), 0.0).clamp(-1, 1)


def _products(layer: nn.Module, passed: Passed, images: int) -> Iterator[tuple[Tensor, Tensor, _Last]]:
    """For each parameter tensor: products with the last point (I, J - 1), squared norms (I, J), and the last point's gradient."""
    if isinstance(layer, nn.Linear) and passed.given.dim() == 2:
        # The gradient is an outer product: its products are those of its two factors.
        rows, columns = (_of_images(one, images) for one in (passed.returned, passed.given))
        (dots, squares), (more_dots, more_squares) = _compared(rows), _compared(columns)
        yield dots * more_dots, squares * more_squares, _Last(rows[:, -1], columns[:, -1])
        if layer.bias is not None:
            yield dots, squares, _Last(rows[:, -1])
        return
    for gradient in gradients_of(layer, passed):
        rows = _of_images(gradient, images)
        yield *_compared(rows), _Last(rows[:, -1])


def _of_images(rows: Tensor, images: int) -> Tensor:
    """(I * J, ...) -> (I, J, numbers)."""
    return rows.reshape(images, len(rows) // images, -1)


def _compared(rows: Tensor) -> tuple[Tensor, Tensor]:
    """(I, J, numbers) -> products with the last of each image (I, J - 1), and squared norms (I, J)."""
    # One product for each image: bmm is many times slower with a single column.
    dots = torch.stack([(of[:-1] @ of[-1:].T).squeeze(1) for of in rows])
    return dots, torch.linalg.vector_norm(rows, dim=2).square()


@dataclass(frozen=True)
class _Last:
    """The gradient of the last point, (I, numbers), made from its factors only where it is asked for."""

    rows: Tensor
    columns: Tensor | None = None

    def __call__(self) -> Tensor:
        if self.columns is None:
            return self.rows
        return torch.einsum("io,ic->ioc", self.rows, self.columns).flatten(1)
