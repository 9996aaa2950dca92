"""Batched L-BFGS with a fixed step against ``torch.optim.LBFGS``, point by point."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from attacks import LBFGSL2, LBFGSCosine
from attacks.gradient.inversion_loop import Objective
from attacks.gradient.lbfgs_steps import walk
from tests.attacks.wire import MEAN, STD, classes, generators, observe, pictures, sigmoid_net

D = 6
Bounds = tuple[Tensor, Tensor]


def box(low: float = -torch.inf, high: float = torch.inf, size: int = D) -> Bounds:
    return torch.full((size,), low).double(), torch.full((size,), high).double()


def bowls(x: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Quadratics of condition 30 and of different size, with a ripple that is no quadratic: sum a x^2 / 2 + cos(3 x)."""
    curvature = torch.logspace(0, 1.5, D).double() * 10.0 ** (rows[:, None] - 1.0)
    centred = x - 1
    loss = (curvature * centred.square() / 2 + 0.1 * torch.cos(3 * centred)).sum(1)
    return loss, curvature * centred - 0.3 * torch.sin(3 * centred)


def torch_walk(
    objective: Objective, start: Tensor, row: int, bounds: Bounds, steps: int, rate: float, signed: bool
) -> tuple[list[Tensor], list[float]]:
    """Every point that torch's optimizer evaluates, and its loss, in the loop of the published code: clamp behind each step."""
    x = start.clone().requires_grad_()
    optimizer = torch.optim.LBFGS([x], lr=rate)
    points: list[Tensor] = []
    losses: list[float] = []

    def closure() -> Tensor:
        loss, gradient = objective(x.detach()[None], torch.tensor([row]))
        x.grad = gradient[0].sign() if signed else gradient[0].clone()
        points.append(x.detach().clone())
        losses.append(float(loss))
        return loss[0]

    for _ in range(steps):
        optimizer.step(closure)
        with torch.no_grad():
            x.copy_(x.clamp(*bounds))
    return points, losses


def recorded(objective: Objective, seen: dict[int, list[Tensor]]) -> Objective:
    def watched(x: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        for point, row in zip(x, rows.tolist(), strict=True):
            seen.setdefault(row, []).append(point.clone())
        return objective(x, rows)

    return watched


@pytest.mark.parametrize("bounds", [box(), box(-0.2, 0.7)], ids=["free", "boxed"])
@pytest.mark.parametrize(("rate", "signed"), [(1.0, False), (0.1, False), (1e-4, False), (1e-4, True), (0.01, True)])
def test_every_point_is_the_one_that_torch_evaluates(rate: float, signed: bool, bounds: Bounds) -> None:
    """Three problems at once, of different scale, that end their steps at different times.

    The first forty evaluations, two whole steps of torch's, are compared: later ones magnify rounding where the step is too long.
    """
    start = torch.zeros(3, D).double() + torch.linspace(-1, 0.5, 3).double()[:, None]
    seen: dict[int, list[Tensor]] = {}
    end = walk(recorded(bowls, seen), start, bounds, steps=7, learning_rate=rate, signed=signed)
    for row in range(3):
        points, _ = torch_walk(bowls, start[row].clamp(*bounds), row, bounds, 7, rate, signed)
        # Torch evaluates once more in each step that has nothing left to do.
        assert len(seen[row]) >= min(len(points), 40) - 7
        for ours, theirs in zip(seen[row][:40], points, strict=False):
            torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-6)
        lowest = min(float(bowls(point[None], torch.tensor([row]))[0]) for point in seen[row])
        assert end.loss[row].item() == pytest.approx(lowest, rel=1e-12)
        assert bowls(end.unknowns[row : row + 1], torch.tensor([row]))[0].item() == pytest.approx(lowest, rel=1e-12)
        assert end.evaluations[row] == len(seen[row])


def test_more_pairs_than_the_history_holds_push_the_oldest_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch with a history of 5, against ours of 5: 140 evaluations make far more pairs than that."""
    monkeypatch.setattr("attacks.gradient.lbfgs_steps.HISTORY", 5)
    start = torch.full((1, D), -1.0).double()
    seen: dict[int, list[Tensor]] = {}
    walk(recorded(bowls, seen), start, box(), steps=7, learning_rate=0.02)
    original = torch.optim.LBFGS
    monkeypatch.setattr(torch.optim, "LBFGS", lambda params, lr: original(params, lr=lr, history_size=5))
    points, _ = torch_walk(bowls, start[0], 0, box(), 7, 0.02, False)
    assert len(points) == len(seen[0]) == 140
    torch.testing.assert_close(torch.stack(seen[0]), torch.stack(points), rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("preset", [LBFGSL2, LBFGSCosine])
def test_the_presets_walk_as_the_published_loop_does(preset: Callable[..., LBFGSL2]) -> None:
    """The published loop, written out with double backward and torch's optimizer: same start, same end, same objective.

    Three steps of up to 20 iterations; double precision, as a trajectory of 60 iterations magnifies rounding.
    """
    model = sigmoid_net().double()
    image, label = pictures(1), classes(1)
    seen = observe(model, image.double(), label)
    attack = preset(iterations=3, restarts=1, second_order="exact")
    guess = attack.attack_many([seen], generators(1))[0]

    x = torch.randn(1, 1, 12, 12, generator=generators(1)[0]).double().requires_grad_()
    black, white = ((level - MEAN[0]) / STD[0] for level in (0.0, 1.0))
    observed = torch.cat([-seen.update[name].flatten() / 0.1 for name, _ in model.named_parameters()])
    optimizer = torch.optim.LBFGS([x], lr=attack.learning_rate)
    evaluated: list[tuple[float, Tensor]] = []

    def closure() -> Tensor:
        gradient = torch.autograd.grad(F.cross_entropy(model(x), label), list(model.parameters()), create_graph=True)
        dummy = torch.cat([part.flatten() for part in gradient])
        distance = 1 - F.cosine_similarity(dummy, observed, 0)
        if attack.cost == "l2":
            distance = (dummy - observed).square().sum()
        smooth = x.diff(dim=2).abs().mean() + x.diff(dim=3).abs().mean()
        loss = distance + attack.total_variation * smooth
        evaluated.append((float(loss.detach()), x.detach().clone()))
        x.grad = torch.autograd.grad(loss, x)[0]
        if attack.signed:
            x.grad.sign_()
        return loss

    with torch.no_grad():
        x.copy_(x.clamp(black, white) if attack.boxed else x)
    for _ in range(attack.iterations):
        optimizer.step(closure)
        with torch.no_grad():
            x.copy_(x.clamp(black, white) if attack.boxed else x)
    lowest, best = min(evaluated, key=lambda one: one[0])
    assert guess.diagnostics["objective"] == pytest.approx(lowest, rel=1e-6)
    torch.testing.assert_close(guess.images, (best * STD[0] + MEAN[0]).clamp(0, 1).to(guess.images), rtol=0, atol=1e-5)
    assert guess.diagnostics["evaluations"] == len(evaluated) > 20


def test_a_loss_that_is_not_a_number_fails_that_problem_only() -> None:
    def objective(x: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        loss = (x**2).sum(1)
        return loss.masked_fill((rows == 0) & (loss < 1), torch.nan), 2 * x

    end = walk(objective, torch.full((2, D), 2.0).double(), box(), steps=50, learning_rate=0.3)
    assert end.loss[0] == torch.inf
    assert end.loss[1] < 1e-8
    assert end.evaluations[0] < end.evaluations[1]


def test_a_problem_that_starts_at_its_minimum_ends_at_once() -> None:
    def objective(x: Tensor, _: Tensor) -> tuple[Tensor, Tensor]:
        return (x**2).sum(1), 2 * x

    end = walk(objective, torch.zeros(1, D).double(), box(), steps=100, learning_rate=1.0)
    assert end.evaluations.tolist() == [1]
