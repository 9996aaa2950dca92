"""Gradients of single examples, and the similarity of many points' gradients to that of the last point of their path.

``torch.func`` computes one gradient for each example of a pass: a loop over examples spends its time on overhead, and one gradient
of a batch mixes its examples.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional as F

from simulations.settings.errors import ConfigError

MOST_BYTES = 1 << 27
"""Of the gradients of one pass."""
MOST_EXAMPLES = 32
"""Of one pass: more are no faster."""


class Similarities(NamedTuple):
    """Similarity of gradients by the two measures named GradSim; the same shape and range, [-1, 1].

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
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = copy.deepcopy(model).requires_grad_(True).eval()
        self._weights = {name: weight.detach() for name, weight in self.model.named_parameters()}
        self._each = vmap(grad(self._loss), in_dims=(None, 0, 0))
        size = 4 * sum(weight.numel() for weight in self._weights.values())
        self._at_once = min(MOST_EXAMPLES, max(1, MOST_BYTES // size))
        self._reached: tuple[str, ...] = ()

    def _loss(self, weights: dict[str, Tensor], image: Tensor, target: Tensor) -> Tensor:
        return F.cross_entropy(functional_call(self.model, weights, (image[None],)), target[None])

    def verify(self, shape: Sequence[int], classes: int) -> None:
        """Compute the gradient of a random image (C, H, W), before anything is trained.

        Raises:
            ConfigError: When the model does what ``torch.func.vmap`` cannot follow.
        """
        images = torch.randn(2, *shape, generator=torch.Generator().manual_seed(0))
        try:
            self.of(images, F.one_hot(torch.arange(2) % classes, classes).float())
        except (RuntimeError, ValueError) as error:
            raise ConfigError(f"the gradients of single examples cannot be computed by torch.func: {error}") from error

    def of(self, images: Tensor, targets: Tensor) -> list[Tensor]:
        """The gradients of single examples.

        Args:
            images: (B, C, H, W), normalised.
            targets: (B, K), class probabilities.

        Returns:
            (B, numbers in the tensor) for each parameter tensor that the loss reaches, in the model's order.
        """
        # The zeros that torch.func gives for the others would count as dissimilar gradients.
        self._reached = self._reached or self._names_reached(images[0], targets[0])
        passes = zip(torch.split(images, self._at_once), torch.split(targets, self._at_once), strict=True)
        found = [self._each(self._weights, *some) for some in passes]
        return [torch.cat([one[name] for one in found]).reshape(len(images), -1) for name in self._reached]

    def _names_reached(self, image: Tensor, target: Tensor) -> tuple[str, ...]:
        weights = {name: weight.clone().requires_grad_(True) for name, weight in self._weights.items()}
        found = torch.autograd.grad(self._loss(weights, image, target), list(weights.values()), allow_unused=True)
        return tuple(name for name, gradient in zip(weights, found, strict=True) if gradient is not None)

    def similarities(self, points: Tensor, targets: Tensor, starts: Sequence[Tensor] | None = None) -> Similarities:
        """Similarity of each point's gradient to that of the last point of the same image.

        Args:
            points: (I, J, C, H, W), normalised; the last of the J points is the one that the others are compared with.
            targets: (I, K), class probabilities, the same for all points of an image.
            starts: What ``of`` returned for another point of each image, which is compared, too, as the first.

        Returns:
            (I, J - 1), or (I, J) with ``starts``, of each; a cosine is 0 where a gradient vanishes.
        """
        found = [
            self._along(way, target, () if starts is None else [start[at : at + 1] for start in starts])
            for at, (way, target) in enumerate(zip(points, targets, strict=True))
        ]
        return Similarities(*map(torch.stack, zip(*found, strict=True)))

    def _along(self, way: Tensor, target: Tensor, start: Sequence[Tensor]) -> Similarities:
        """Of the points (J, C, H, W) of one image, taken from its end, so that one pass holds few gradients."""
        products, squares, last = list[Tensor](), list[Tensor](), list[Tensor]()
        for some in torch.split(way.flip(0), self._at_once):
            rows = self.of(some, target.expand(len(some), -1))
            last = last or [one[0] for one in rows]
            products.append(_products(rows, last))
            squares.append(_squares(rows))
        if start:
            products.append(_products(start, last))
            squares.append(_squares(start))
        dots, norms = torch.cat(products)[1:].flip(0), torch.cat(squares)
        others, own = norms[1:].flip(0), norms[:1]
        whole = _cosine(dots.sum(1), others.sum(1), own.sum(1))
        return Similarities(whole, _cosine(dots, others, own).mean(1))


def _products(rows: Sequence[Tensor], last: Sequence[Tensor]) -> Tensor:
    """(points, tensors) from rows (points, numbers) and the last point's (numbers,) of each tensor."""
    return torch.stack([one @ other for one, other in zip(rows, last, strict=True)], 1).double()


def _squares(rows: Sequence[Tensor]) -> Tensor:
    return torch.stack([torch.linalg.vector_norm(one, dim=1).square() for one in rows], 1).double()


def _cosine(products: Tensor, norms: Tensor, last: Tensor) -> Tensor:
    length = (norms * last).sqrt()
    return torch.where(length > 0, products / length.clamp(min=torch.finfo(length.dtype).tiny), 0.0).clamp(-1, 1)
