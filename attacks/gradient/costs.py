"""How far a dummy gradient is from the observed one, before any prior: what an inversion minimises; gradients in factors."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.func import grad_and_value, vmap

from defenses.tensors import Update

BLOCK = 2**17
"""Entries of a row that are multiplied at once: more are slower, as they leave the processor's cache."""


@dataclass(frozen=True)
class Cost:
    """A distance between two gradients.

    A new one is a function and one entry in the ``costs`` of a subclass of ``GradientInversion``; nothing else needs to know of it.

    Attributes:
        distance: (dummy, target) -> 0-d, both name -> tensor, of one trial; differentiable by the first, in operations that
            ``torch.func.vmap`` can batch.
        scale_free: Multiplying a gradient by a positive number changes nothing, so that no learning rate need be known.
        closed_form: (T, P), (T, P) -> values (T,) and their gradients (T, P) by the first, of T trials with all parameters
            concatenated: what autograd makes of ``distance``, in fewer passes over memory. None leaves it to autograd.
        by_products: <a, b>, |a|^2 and |b|^2, (T,) each, of a dummy a and a target b -> values, u and v, so that u b + v a is the
            gradient by a: the gradients need not be formed. None: a cost of other numbers, or one that these give too coarsely.
        squared: The value is |a - b|^2, of whose digits the products lose what a is close to b.
    """

    distance: Callable[[Update, Update], Tensor]
    scale_free: bool = False
    closed_form: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]] | None = None
    by_products: Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor, Tensor]] | None = None
    squared: bool = False

    def with_gradient(self, dummy: Tensor, target: Tensor, named: Callable[[Tensor], Update]) -> tuple[Tensor, Tensor]:
        """Values (T,) and their gradients (T, P) by ``dummy``, for gradients (T, P) with all parameters concatenated.

        ``named`` reads one of them (P,) as name -> tensor.
        """
        if self.closed_form is not None:
            return self.closed_form(dummy, target)

        def distance(trial: Tensor, other: Tensor) -> Tensor:
            return self.distance(named(trial), named(other))

        gradients, values = vmap(grad_and_value(distance))(dummy, target)
        return values, gradients


def cosine_distance(gradient: Update, target: Update) -> Tensor:
    """1 - <a, b> / (|a| |b|) over all parameters concatenated; 1 where one of them is zero (Geiping et al. 2020, Eq. 4)."""
    product = sum_over(lambda a, b: a * b, gradient, target)
    # 1e-24 keeps the derivative of the root finite at a zero gradient, and is far below any gradient that carries a picture.
    norms = [(sum_over(lambda a, _: a.square(), g, g) + 1e-24).sqrt() for g in (gradient, target)]
    return 1 - product / (norms[0] * norms[1])


def masked_cosine_distance(gradient: Update, target: Update) -> Tensor:
    """``cosine_distance`` over the entries at which ``target`` is not zero: what pruning left."""
    return cosine_distance({name: value * (target[name] != 0) for name, value in gradient.items()}, target)


def squared_distance(gradient: Update, target: Update) -> Tensor:
    """Sum of squared differences over all parameters (Zhu et al. 2019, Eq. 3)."""
    return sum_over(lambda a, b: (a - b).square(), gradient, target)


def absolute_distance(gradient: Update, target: Update) -> Tensor:
    """Sum of absolute differences over all parameters."""
    return sum_over(lambda a, b: (a - b).abs(), gradient, target)


def sum_over(term: Callable[[Tensor, Tensor], Tensor], a: Update, b: Update) -> Tensor:
    """Sum of ``term(a[name], b[name])`` over names and entries: a 0-d tensor."""
    return torch.stack([term(value, b[name]).sum() for name, value in a.items()]).sum()


def _cosine(dummy: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    products = (dots(*pair) for pair in ((dummy, target), (dummy, dummy), (target, target)))
    values, on_target, on_dummy = _cosine_of(*products)
    return values, torch.mul(target, on_target[:, None]).addcmul_(dummy, on_dummy[:, None])


def _cosine_of(products: Tensor, squares: Tensor, others: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    # As in ``cosine_distance``.
    squares, others = squares + 1e-24, others + 1e-24
    scale = (squares * others).rsqrt()
    # In float32 the product of two tiny squares is 0, and of two huge ones infinite; their roots are neither.
    scale = torch.where((scale > 0) & scale.isfinite(), scale, squares.rsqrt() * others.rsqrt())
    return 1 - products * scale, -scale, scale * products / squares


def _masked_cosine(dummy: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    # The gradient is zero where the target is, because both of its terms are.
    return _cosine(dummy * (target != 0), target)


def _squared(dummy: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    difference = dummy - target
    return dots(difference, difference), 2 * difference


def squared_by_products(products: Tensor, squares: Tensor, others: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """``squared_distance`` for ``Cost.by_products``: of a distance below 1e-6 of |target|^2 the direction is rounding."""
    two = torch.full_like(products, 2.0)
    return squares - 2 * products + others, -two, two


def _absolute(dummy: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    difference = dummy - target
    return difference.abs().sum(1), difference.sign()


def dots(a: Tensor, b: Tensor) -> Tensor:
    """Inner products of the rows (T, P).

    Where a product of matrices adds one entry after the other, a row of three million loses four of float32's seven digits: a
    cosine that is wrong by 1e-3. Summed in pairs it loses none; a block at a time, so that no temporary is as large as the rows.
    """
    blocks = zip(torch.split(a, BLOCK, 1), torch.split(b, BLOCK, 1), strict=True)
    return torch.stack([torch.linalg.vecdot(block, other) for block, other in blocks]).sum(0)


COSTS = {
    "masked-cosine": Cost(masked_cosine_distance, scale_free=True, closed_form=_masked_cosine),
    "cosine": Cost(cosine_distance, scale_free=True, closed_form=_cosine, by_products=_cosine_of),
    "l2": Cost(squared_distance, closed_form=_squared),
    "l1": Cost(absolute_distance, closed_form=_absolute),
}
"""By the name that ``GradientInversion.cost`` gives them."""


@dataclass
class GradientFactors:
    """The gradient of a linear layer's weight, O x I, in factors: outer products of what enters and what is sent back.

    Attributes:
        rows: (T, r, I), what entered, r rows of each trial; of several calls one after the other.
        outputs: Of each call, without bias: the loss is differentiated by them.
        back: (T, r, O), that derivative.
    """

    rows: Tensor
    outputs: list[Tensor]
    back: Tensor | None = None

    def products(self, target: Tensor) -> tuple[Tensor, Tensor]:
        """<gradient, target> and |gradient|^2 (T,), for targets (T, O, I)."""
        assert self.back is not None
        products = (self.rows @ target.mT * self.back).sum((1, 2))
        return products, ((self.rows @ self.rows.mT) * (self.back @ self.back.mT)).sum((1, 2))

    def squared_distance(self, target: Tensor) -> Tensor:
        """|gradient - target|^2 (T,), of a difference that is formed for this alone."""
        assert self.back is not None
        return torch.baddbmm(target, self.back.mT, self.rows, beta=-1).square().sum((1, 2))


@dataclass(frozen=True)
class Move:
    """A change of a linear layer's weight, u target + v gradient, that is never formed; u and v are (T, 1, 1)."""

    target: Tensor
    of_target: Tensor
    gradient: GradientFactors
    of_gradient: Tensor

    def __call__(self, rows: Tensor) -> Tensor:
        """What it adds to the layer's output for rows (T, b, I)."""
        assert self.gradient.back is not None
        along = rows @ self.gradient.rows.mT @ self.gradient.back
        return self.of_target * (rows @ self.target.mT) + self.of_gradient * along
