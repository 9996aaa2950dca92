"""Surrogate matching against an independent oracle: torch's autograd, in double precision, through the model at the interpolated
weights; on networks that people use, in both precisions, and along the whole line between the two models.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from attacks.gradient.costs import COSTS
from attacks.gradient.surrogate import ALPHA_UNIT, SurrogateDifferencedMatching, SurrogateGradientMatching
from attacks.gradient.trial_gradients.matching import MatchingProblem, attackable
from attacks.observations import ClientUpdate
from clients.models.classifiers import build_model
from tests.attacks.gradient.test_multi_step import normalised, trained
from tests.attacks.wire import CLASSES, pictures

MODELS = ("cnn", "lenet", "mlp")
EXACT, DIFFERENCED = "exact", "differenced"
# Relative error of the derivative by alpha. A difference along the weights has about the root of the precision left; measured
# 2e-6 to 4e-3 in single precision, where it is the largest, on lenet.
TOLERANCE = {
    (EXACT, torch.float64): 1e-10,
    (DIFFERENCED, torch.float64): 1e-5,
    (EXACT, torch.float32): 1e-4,
    (DIFFERENCED, torch.float32): 2e-2,
}
LABELS = torch.tensor([0, 1, 2, 3])
Evaluate = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]


def network(name: str, dtype: torch.dtype = torch.float64) -> nn.Module:
    return build_model(name, num_classes=CLASSES, input_shape=(1, 28, 28), seed=1).to(dtype).eval()


def seen_of(model: nn.Module) -> ClientUpdate:
    """Twelve steps on four images: far enough for ReLUs to switch."""
    return trained(model, pictures(4, side=28), LABELS, [[0, 1], [2, 3]] * 6, 0.1)


def engine(model: nn.Module, seen: ClientUpdate, kind: str) -> Evaluate:
    targets = {name: value[None] for name, value in seen.gradient().items()}
    shape = (4, 1, 28, 28)
    problem = MatchingProblem(attackable(model, False), shape, CLASSES, targets, LABELS[None], COSTS["cosine"], 0.0)
    moves = {name: value[None].to(targets[name]) for name, value in seen.update.items()}
    exact = SurrogateGradientMatching(problem, moves)
    return exact if kind == EXACT else SurrogateDifferencedMatching(exact)


def oracle(model: nn.Module, seen: ClientUpdate, pixels: Tensor, alpha: float) -> tuple[float, Tensor, float]:
    """1 - cosine of the gradient at w_alpha and of w_0 - w_T, and its derivatives by the pixels and by alpha."""
    pixels = pixels.double().requires_grad_()
    at = torch.tensor(alpha, dtype=torch.float64, requires_grad=True)
    start = {name: weight.detach() for name, weight in model.named_parameters()}
    move = {name: seen.update[name].double() for name in start}
    between = {name: (1 - at) * start[name] + at * (start[name] + move[name]) for name in start}
    loss = F.cross_entropy(torch.func.functional_call(model, between, (pixels,)), LABELS)
    gradient = torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(between.values()), create_graph=True)])
    sent = torch.cat([-move[name].flatten() for name in start])
    distance = 1 - (gradient @ sent) / (gradient.norm() * sent.norm())
    by_pixels, by_alpha = torch.autograd.grad(distance, [pixels, at])
    return float(distance.detach()), by_pixels, float(by_alpha)


def guess() -> Tensor:
    return normalised(pictures(4, side=28, seed=5))


@pytest.mark.parametrize("alpha", [0.0, 0.3, 0.8])
@pytest.mark.parametrize(("kind", "dtype"), TOLERANCE, ids=str)
@pytest.mark.parametrize("name", MODELS)
def test_values_and_derivatives_are_those_of_autograd(name: str, kind: str, dtype: torch.dtype, alpha: float) -> None:
    seen = seen_of(network(name, dtype))
    value, by_pixels, by_alpha = oracle(network(name), seen, guess(), alpha)
    row = torch.cat([guess().flatten(), torch.tensor([alpha / ALPHA_UNIT])]).to(dtype)[None]
    found, gradient = engine(network(name, dtype), seen, kind)(row, torch.tensor([0]))
    assert float(found) == pytest.approx(value, abs=1e-12 if dtype == torch.float64 else 1e-5)
    assert float(gradient[0, -1]) / ALPHA_UNIT == pytest.approx(by_alpha, rel=TOLERANCE[kind, dtype])
    assert F.cosine_similarity(gradient[0, :-1].double(), by_pixels.flatten(), dim=0) > 1 - 1e-4
    assert float(gradient[0, :-1].double().norm() / by_pixels.norm()) == pytest.approx(1, rel=1e-2)


@pytest.mark.parametrize(("name", "jumps"), [("lenet", False), ("cnn", True), ("mlp", True)])
def test_between_kinks_the_derivative_is_right_and_at_kinks_the_value_jumps(name: str, jumps: bool) -> None:
    """The derivative, added up from w_0 to w_T, gives the change of a smooth network; of one with ReLUs the jumps are missing."""
    model, line = network(name), torch.linspace(0, 1, 51).double()
    seen = seen_of(model)
    at = [oracle(model, seen, guess(), float(alpha)) for alpha in line]
    added = float(torch.trapezoid(torch.tensor([slope for _, _, slope in at], dtype=torch.float64), line))
    missing = abs(at[-1][0] - at[0][0] - added) / abs(added)
    assert 0.03 < missing < 0.3 if jumps else missing < 1e-3
