"""Gradient matching at the cost of two ordinary gradients instead of a second derivative."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import grad_and_value, vmap
from torch.overrides import TorchFunctionMode

from attacks.gradient.costs import GradientFactors, Move, dots
from attacks.gradient.trial_gradients.batch_statistics import StatisticsPrior, plausible
from attacks.gradient.trial_gradients.matching import GradientMatching, Statistics
from attacks.gradient.trial_gradients.memory import is_out_of_memory
from attacks.gradient.trial_gradients.trial_layers import TrialNetwork, expanded
from attacks.observations import AttackError
from defenses.module_calls import Call, calls_of
from defenses.tensors import Update


class RecordKinks(TorchFunctionMode):
    """Context that records the active side of every ReLU, and the position of every maximum.

    Values are those of the ordinary call. ``ReplayKinks`` then evaluates the same network as if nothing had moved across a kink,
    which makes it differentiable wherever its other layers are: a difference of its gradients tends to the derivative that
    automatic differentiation gives, instead of counting the kinks between two points.

    Attributes:
        noted: One tensor per call, in their order.
    """

    def __init__(self) -> None:
        super().__init__()
        self.noted: list[Tensor] = []

    def __torch_function__(
        self, func: Callable[..., Any], types: Sequence[type], args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in _RELU:
            result = torch.relu(args[0])
            # 0 or 1 as a float: products with booleans are slow.
            self.noted.append(result.detach().sign())
            return result
        if func is F.leaky_relu:
            result = F.leaky_relu(args[0], *args[1:2], **_without(kwargs, "inplace"))
            negative = args[1] if len(args) > 1 else kwargs.get("negative_slope", 0.01)
            self.noted.append(torch.where(result.detach() > 0, 1.0, negative).to(result))
            return result
        if func in _MAX_POOL:
            result, positions = F.max_pool2d_with_indices(*args, **_without(kwargs, "return_indices"))
            self.noted.append(positions)
            return result
        return func(*args, **kwargs)


class ReplayKinks(TorchFunctionMode):
    """Context in which every ReLU and maximum takes the side from ``RecordKinks``.

    Args:
        noted: By the same network on inputs of the same shape.
    """

    def __init__(self, noted: Sequence[Tensor]) -> None:
        super().__init__()
        self._noted = iter(noted)

    def __torch_function__(
        self, func: Callable[..., Any], types: Sequence[type], args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        if func in _RELU or func is F.leaky_relu:
            return args[0] * next(self._noted)
        if func in _MAX_POOL:
            positions = next(self._noted)
            return args[0].flatten(2).gather(2, positions.flatten(2)).view(positions.shape)
        return func(*args, **(kwargs or {}))


_RELU = {F.relu, torch.relu, Tensor.relu}
_MAX_POOL = {F.max_pool2d, torch.max_pool2d}


def _without(kwargs: dict[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in kwargs.items() if key != name}


RELATIVE_STEP = 1 / 30
"""Of the weights' norm, times the root of the machine epsilon: the error was lowest there for LeNet, ConvNet and ResNet-20."""


class DifferencedMatching:
    """The objective of ``GradientMatching`` with a finite difference along the weights as its gradient.

    With v = dD/dg at the dummy gradient g(u) = grad_w L(w, u), the chain rule asks for the derivative of <g(u), v> by the
    unknowns u, which is a derivative along v of an ordinary gradient:

        d<g(u), v>/du  =  d/de grad_u L(w + e v, u) at e = 0  ~  (grad_u L(w + e v, u) - grad_u L(w, u)) / e

    so that one evaluation takes two forward and backward passes, none of which is differentiated again. ReLUs and maxima keep the
    side of their kinks in the second pass (``kinks``); otherwise the difference would count kinks and be useless. The
    distances are exact. A ``StatisticsPrior`` P is read of the second pass and costs no pass of its own: the gradient of L + e P
    at w + e v adds that of P to the difference. On a GPU, convolutions in TensorFloat-32 are too coarse for this: see
    ``full_precision``. It must match the gradient itself, not that of an unrolled client.

    Attributes:
        second_pass_has_statistics: The second pass shows the statistics that a ``StatisticsPrior`` compares. False: it is of
            another model than the one whose statistics are compared, and the prior takes a pass of its own.

    Raises:
        AttackError: When the model has layers that ``TrialNetwork`` does not know, or frozen parameters.

    Source: Pearlmutter, "Fast Exact Multiplication by the Hessian", 1994, section 2 (the difference that his operator replaces).
        Fixed kinks are ours.
    """

    second_pass_has_statistics: ClassVar[bool] = True

    def __init__(self, exact: GradientMatching) -> None:
        self._exact = exact
        if frozen := len(list(exact.model.parameters())) - len(exact.parameters):
            raise AttackError(
                f"{frozen} of the model's parameters are frozen, and have no form with one weight per trial"
            )
        self._network = TrialNetwork(exact.model)
        self.constants: frozenset[str] = frozenset()
        compared = self.second_pass_has_statistics and isinstance(exact.prior, StatisticsPrior)
        self._matched = self._network.batch_norms if compared else {}
        # Until a call finds none: watching every operation of a small network costs as much as the operation.
        self._kinked = True
        weights = torch.cat([weight.flatten() for weight in exact.parameters.values()])
        self._step = RELATIVE_STEP * torch.finfo(weights.dtype).eps ** 0.5 * weights.norm()
        flat = (target.flatten(1) for target in exact.targets.values())
        self._others = torch.stack([dots(target, target) for target in flat]).sum(0)
        self._form(list(exact.parameters), weights)

    def _form(self, names: Sequence[str], weights: Tensor | None = None) -> None:
        """Keep these parameters and their targets in one tensor each; those of the others are kept in factors."""
        held = self._exact.parameters
        self._shapes = {name: held[name].shape for name in names}
        none = self._others.new_empty(len(self._others), 0)
        self._weights = torch.cat([none[0], *(held[name].flatten() for name in names)]) if weights is None else weights
        self._targets = torch.cat([none, *(self._exact.targets[name].flatten(1) for name in names)], 1)

    def __call__(self, unknowns: Tensor, trials: Tensor) -> tuple[Tensor, Tensor]:
        """Losses (n,) and their gradients (n, D), as ``GradientMatching`` gives them."""
        known, targets, observed, _ = self._exact.of_trials(trials)
        shared = {name: w.requires_grad_() for name, w in expanded(self._exact.parameters, len(trials)).items()}
        self._network.normalise_by({name: observed[name] for name in self.constants})
        self._network.keep_factors(self._exact.cost.by_products is not None)
        kinks, rows = RecordKinks(), unknowns.detach().requires_grad_()
        with kinks if self._kinked else nullcontext():
            loss = self._loss(shared, rows, known)
        factors = self._network.factors
        if len(self._shapes) + len(factors) != len(shared):
            self._form([name for name in shared if name not in factors])
        outputs = [output for held in factors.values() for output in held.outputs]
        here, *gradients = torch.autograd.grad(loss, [rows, *(shared[name] for name in self._shapes), *outputs])
        back = iter(gradients[len(self._shapes) :])
        for held in factors.values():
            held.back = torch.cat([next(back) for _ in held.outputs], 1)
        formed = [gradient.flatten(1) for gradient in gradients[: len(self._shapes)]]
        dummy = torch.cat([rows.new_empty(len(rows), 0), *formed], 1)
        self._kinked = bool(kinks.noted)
        distances, directions, step, moves = self._direction(dummy, trials, factors, targets)
        moved = self._named(directions.mul_(step).add_(self._weights))
        self._network.move(moves)
        rows = unknowns.detach().requires_grad_()
        with ReplayKinks(kinks.noted) if self._kinked else nullcontext(), calls_of(self._matched) as calls:
            loss = self._loss({name: moved.get(name, shared[name].detach()) for name in shared}, rows, known)
        statistics = self._statistics(calls, observed, step)
        there = torch.autograd.grad(loss + (step * statistics).sum(), rows)[0]
        pulls, priors = self._priors(unknowns, trials)
        # A direction of zero moves nothing, and its step is 0.
        slopes = (there - here) / torch.where(step > 0, step, 1.0)
        return distances + statistics.detach()[:, 0] + priors, slopes + pulls

    def _direction(
        self, dummy: Tensor, trials: Tensor, factors: Mapping[str, GradientFactors], targets: Update
    ) -> tuple[Tensor, Tensor, Tensor, dict[str, Move]]:
        """Distances (n,), and the step along their gradients by the dummy gradients.

        These are (n, P) for the weights that are formed, with the size of the step (n, 1), and a ``Move`` for each other weight.
        """
        formed = self._targets if len(trials) == len(self._targets) else self._targets[trials]
        tiny = torch.finfo(dummy.dtype).tiny
        if not factors:
            distances, directions = self._exact.cost.with_gradient(dummy, formed, self._named)
            # A direction of zero moves nothing, however long the step.
            return distances, directions, self._step / directions.norm(dim=1, keepdim=True).clamp_min(tiny), {}
        pairs = [(dots(dummy, formed), dots(dummy, dummy)), *(f.products(targets[name]) for name, f in factors.items())]
        products, squares = (torch.stack(column).sum(0) for column in zip(*pairs, strict=True))
        others = self._others[trials]
        assert self._exact.cost.by_products is not None
        distances, u, v = self._exact.cost.by_products(products, squares, others)
        if self._exact.cost.squared:
            apart = [
                dots(dummy - formed, dummy - formed),
                *(f.squared_distance(targets[n]) for n, f in factors.items()),
            ]
            distances = torch.stack(apart).sum(0)
        # |u b + v a|, without squares of numbers whose squares no float holds.
        of_target, of_dummy = u * others.sqrt(), v * squares.sqrt()
        largest = torch.maximum(of_target.abs(), of_dummy.abs()).clamp_min(tiny)
        ends = (of_target / largest).square() + (of_dummy / largest).square()
        cosine = products / (others.sqrt() * squares.sqrt()).clamp_min(tiny)
        both = ends + 2 * cosine * (of_target / largest) * (of_dummy / largest)
        # Near the truth the terms cancel to less than their rounding.
        length = largest * torch.maximum(both, torch.finfo(dummy.dtype).eps * ends).sqrt()
        step = torch.where(length > 0, self._step / length.clamp_min(tiny), 0.0)[:, None]
        u, v = u[:, None], v[:, None]
        moves = {
            name: Move(targets[name], (step * u)[:, None], held, (step * v)[:, None]) for name, held in factors.items()
        }
        return distances, u * formed + v * dummy, step, moves

    def _priors(self, unknowns: Tensor, trials: Tensor) -> tuple[Tensor, Tensor]:
        """Gradients (n, D) of the priors, and these (n,)."""
        known, _, observed, smoothing = self._exact.of_trials(trials)
        pulls, priors = vmap(grad_and_value(self._prior))(unknowns, known, observed, smoothing)
        return pulls, priors

    def with_prior(self, weight: float | Tensor) -> DifferencedMatching:
        """See ``GradientMatching``."""
        other = copy.copy(self)
        other._exact = self._exact.with_prior(weight)
        return other

    def normalised(self) -> DifferencedMatching:
        """A copy whose BatchNorm layers normalise by the statistics sent, where these are plausible; ``self`` without such layers.

        A layer normalises by its batch if a sent variance (``plausible``) of any trial is not positive.
        """
        if not (constants := plausible(self._exact.observed if self._matched else {})):
            return self
        other = copy.copy(self)
        other.constants = constants
        return other

    def from_zero(self) -> Tensor:
        """See ``GradientMatching``."""
        return self._exact.from_zero()

    def _gradients(self, weights: Update, unknowns: Tensor, known: Tensor, wanted: list[Tensor]) -> tuple[Tensor, ...]:
        """Of the sum of all trials' training losses, by the unknowns and by ``wanted``."""
        rows = unknowns.detach().requires_grad_()
        return torch.autograd.grad(self._loss(weights, rows, known), [rows, *wanted])

    def _loss(self, weights: Update, unknowns: Tensor, known: Tensor) -> Tensor:
        images, labels = self._exact.read(unknowns, known)
        logits = self._network(weights, images.flatten(0, 1)).view(labels.shape)
        return -(labels * F.log_softmax(logits, -1)).sum() / labels.shape[1]

    def _statistics(self, calls: Sequence[Call], observed: Statistics, like: Tensor) -> Tensor:
        """The ``StatisticsPrior`` (n, 1) of what entered the BatchNorm layers; zeros ``like`` (n, 1) without one."""
        prior, statistics = self._exact.prior, {}
        if not isinstance(prior, StatisticsPrior) or not self._matched:
            return torch.zeros_like(like)
        for layer, features, _ in calls:
            rows = features.view(len(like), -1, *features.shape[1:])
            over = (1, *range(3, rows.dim()))
            statistics[self._matched[layer]] = rows.mean(over), rows.var(over, unbiased=False)
        return vmap(prior.of)(statistics, observed)[:, None]

    def _prior(self, unknowns: Tensor, known: Tensor, observed: Statistics, smoothing: Tensor) -> Tensor:
        """Priors of one trial that the passes through the network do not give."""
        images = self._exact.read(unknowns, known)[0]
        return self._exact.smoothness(images, smoothing) + (
            0 if self._matched else self._exact.other_prior(images, observed)
        )

    def _named(self, rows: Tensor) -> Update:
        """Weights or gradients (..., P) by name, (..., *shape) each."""
        parts = torch.split(rows, [shape.numel() for shape in self._shapes.values()], -1)
        named = zip(self._shapes.items(), parts, strict=True)
        return {name: part.reshape(*part.shape[:-1], *shape) for (name, shape), part in named}


@contextmanager
def full_precision() -> Iterator[None]:
    """Context of full float32 products on a GPU: TensorFloat-32 keeps ten bits, in which a small step gets lost."""
    settings: tuple[Any, ...] = (torch.backends.cudnn, torch.backends.cuda.matmul)
    before = [setting.allow_tf32 for setting in settings]
    for setting in settings:
        setting.allow_tf32 = False
    try:
        yield
    finally:
        for setting, allowed in zip(settings, before, strict=True):
            setting.allow_tf32 = allowed


def agrees(
    exact: GradientMatching,
    unknowns: Tensor,
    differenced: Callable[[GradientMatching], DifferencedMatching] = DifferencedMatching,
) -> bool:
    """Whether ``DifferencedMatching`` may replace ``exact``: equal losses and, up to 1 - cosine = 1e-3, gradients at (T, D).

    False, too, where the model has layers or operations that cannot be differenced.
    """
    trials = torch.arange(len(unknowns), device=unknowns.device)
    losses, gradients = exact(unknowns, trials)
    try:
        other_losses, other_gradients = differenced(exact)(unknowns, trials)
    except (AttackError, RuntimeError) as error:
        # Whatever a foreign forward pass does with our layers, the exact objective is there.
        if isinstance(error, RuntimeError) and is_out_of_memory(error):
            raise
        return False
    same = torch.allclose(losses, other_losses, rtol=1e-3, atol=1e-5)
    return same and bool((F.cosine_similarity(gradients, other_gradients) > 1 - 1e-3).all())
