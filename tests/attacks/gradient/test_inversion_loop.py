"""Descents on many problems at once: L-BFGS with a line search against SciPy, with a fixed step, Adam and SGD against torch."""

import itertools

import numpy as np
import pytest
import torch
from scipy.optimize import minimize as scipy_minimize
from torch import Tensor

from attacks.gradient.inversion_loop import Objective, Stage, first_order, step_decay_stages
from attacks.gradient.lbfgs import minimize, walk

D = 6


Bounds = tuple[Tensor, Tensor]


def box(low: float = -torch.inf, high: float = torch.inf) -> Bounds:
    return torch.full((D,), low).double(), torch.full((D,), high).double()


def zeros(count: int) -> Tensor:
    return torch.zeros(count, D).double()


def quadratics(count: int, condition: float = 100.0) -> tuple[Objective, Tensor]:
    """f_t(x) = (x - c_t)' A_t (x - c_t) / 2 with eigenvalues of A_t from 10^t to condition * 10^t; returns c too."""
    generator = torch.Generator().manual_seed(0)
    basis = torch.linalg.qr(torch.randn(count, D, D, generator=generator, dtype=torch.float64)).Q
    values = torch.logspace(0, np.log10(condition), D).double() * 10.0 ** torch.arange(count)[:, None]
    matrix = basis @ torch.diag_embed(values) @ basis.mT
    centre = torch.randn(count, D, generator=generator, dtype=torch.float64)

    def objective(x: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        gradient = (matrix[rows] @ (x - centre[rows])[:, :, None])[:, :, 0]
        return 0.5 * ((x - centre[rows]) * gradient).sum(1), gradient

    return objective, centre


def oracle(objective: Objective, row: int, bounds: tuple[float, float] | None = None):
    def value_and_gradient(x: np.ndarray) -> tuple[float, np.ndarray]:
        loss, gradient = objective(torch.from_numpy(x)[None], torch.tensor([row]))
        return loss.item(), gradient[0].numpy()

    return scipy_minimize(
        value_and_gradient, np.zeros(D), jac=True, method="L-BFGS-B", bounds=None if bounds is None else [bounds] * D
    )


def test_quadratics_of_different_scale_reach_the_optimum_of_scipy_in_any_company() -> None:
    objective, centre = quadratics(4)
    end = minimize(objective, zeros(4), box(), iterations=120)
    for row in range(4):
        assert end.loss[row] <= oracle(objective, row).fun + 1e-8
        alone = minimize(lambda x, _, at=row: objective(x, torch.full((len(x),), at)), zeros(1), box(), iterations=120)
        assert torch.allclose(alone.unknowns[0], end.unknowns[row], atol=1e-9)
    assert torch.allclose(end.unknowns, centre, atol=1e-6)
    assert torch.allclose(end.loss, objective(end.unknowns, torch.arange(4))[0])


def test_a_box_is_respected_and_gives_the_constrained_optimum_of_scipy() -> None:
    objective, _ = quadratics(3, condition=20)
    end = minimize(objective, zeros(3), box(-0.3, 0.4), iterations=400)
    assert torch.equal(end.unknowns, end.unknowns.clamp(*box(-0.3, 0.4)))
    for row in range(3):
        assert end.loss[row].item() == pytest.approx(oracle(objective, row, (-0.3, 0.4)).fun, rel=1e-3)


def test_every_accepted_step_satisfies_the_weak_wolfe_conditions() -> None:
    """On one parabola the points are those of the bracket by hand, from a first step of learning_rate * min(1, 1 / |g|_1)."""
    seen: list[float] = []

    def parabola(x: Tensor, _: Tensor) -> tuple[Tensor, Tensor]:
        seen.append(x.item())
        return (x[:, 0] - 10) ** 2, 2 * (x - 10)

    # The slope must fall to 0.9 of that at 0: 10 - x <= 9. The first step is 0.5 / 20 * 20 = 0.5, doubled to 1, where that holds.
    minimize(parabola, torch.zeros(1, 1).double(), (torch.tensor([-50.0]), torch.tensor([50.0])), 4, learning_rate=0.5)
    assert seen[:3] == pytest.approx([0.0, 0.5, 1.0])
    # A quasi-Newton step of a parabola is exact, and the line search tries 0.5 of it first: 1 + 0.5 * 9.
    assert seen[3] == pytest.approx(5.5)
    seen.clear()
    # A step of 30 goes too far: (30 - 10)^2 > 10^2. Half of it, 15, decreases enough.
    minimize(parabola, torch.zeros(1, 1).double(), (torch.tensor([-50.0]), torch.tensor([50.0])), 3, learning_rate=30.0)
    assert seen == pytest.approx([0.0, 30.0, 15.0])


# ---- with a fixed step, against ``torch.optim.LBFGS``, point by point


def bowls(x: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Quadratics of condition 30 and of different size, with a ripple that is no quadratic: sum a x^2 / 2 + cos(3 x)."""
    curvature = torch.logspace(0, 1.5, D).double() * 10.0 ** (rows[:, None] - 1.0)
    centred = x - 1
    loss = (curvature * centred.square() / 2 + 0.1 * torch.cos(3 * centred)).sum(1)
    return loss, curvature * centred - 0.3 * torch.sin(3 * centred)


def torch_walk(start: Tensor, row: int, bounds: Bounds, steps: int, rate: float, signed: bool) -> list[Tensor]:
    """Every point that torch's optimizer evaluates, in the loop of the published code: clamp behind each step."""
    x = start.clone().requires_grad_()
    optimizer = torch.optim.LBFGS([x], lr=rate)
    points: list[Tensor] = []

    def closure() -> Tensor:
        loss, gradient = bowls(x.detach()[None], torch.tensor([row]))
        x.grad = gradient[0].sign() if signed else gradient[0].clone()
        points.append(x.detach().clone())
        return loss[0]

    for _ in range(steps):
        optimizer.step(closure)
        with torch.no_grad():
            x.copy_(x.clamp(*bounds))
    return points


def recorded(objective: Objective, seen: dict[int, list[Tensor]]) -> Objective:
    def watched(x: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        for point, row in zip(x, rows.tolist(), strict=True):
            seen.setdefault(row, []).append(point.clone())
        return objective(x, rows)

    return watched


def test_every_point_is_the_one_that_torch_evaluates() -> None:
    """Three problems at once, of different scale, that end their steps at different times.

    The first forty evaluations, two whole steps of torch's, are compared: later ones magnify rounding where the step is too long.
    """
    start = torch.zeros(3, D).double() + torch.linspace(-1, 0.5, 3).double()[:, None]
    free, boxed = box(), box(-0.2, 0.7)
    cases = ((1.0, False, free), (0.1, False, boxed), (1e-4, False, free), (1e-4, True, boxed), (0.01, True, free))
    for rate, signed, bounds in cases:
        seen: dict[int, list[Tensor]] = {}
        end = walk(recorded(bowls, seen), start, bounds, steps=3, learning_rate=rate, signed=signed)
        for row in range(3):
            points = torch_walk(start[row].clamp(*bounds), row, bounds, 3, rate, signed)
            # Torch evaluates once more in each step that has nothing left to do.
            assert len(seen[row]) >= min(len(points), 40) - 3, (rate, signed)
            for ours, theirs in zip(seen[row][:40], points, strict=False):
                torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-6)
            lowest = min(float(bowls(point[None], torch.tensor([row]))[0]) for point in seen[row])
            assert end.loss[row].item() == pytest.approx(lowest, rel=1e-12)
            at_end = bowls(end.unknowns[row : row + 1], torch.tensor([row]))[0].item()
            assert at_end == pytest.approx(lowest, rel=1e-12)
            assert end.evaluations[row] == len(seen[row])


def test_more_pairs_than_the_history_holds_push_the_oldest_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("attacks.gradient.lbfgs.HISTORY", 5)
    start = torch.full((1, D), -1.0).double()
    seen: dict[int, list[Tensor]] = {}
    walk(recorded(bowls, seen), start, box(), steps=7, learning_rate=0.02)
    original = torch.optim.LBFGS
    monkeypatch.setattr(torch.optim, "LBFGS", lambda params, lr: original(params, lr=lr, history_size=5))
    points = torch_walk(start[0], 0, box(), 7, 0.02, False)
    assert len(points) == len(seen[0]) == 140
    torch.testing.assert_close(torch.stack(seen[0]), torch.stack(points), rtol=1e-6, atol=1e-9)


def test_a_loss_that_is_not_a_number_fails_that_problem_only_and_a_minimum_ends_at_once() -> None:
    def bowl(x: Tensor, _: Tensor) -> tuple[Tensor, Tensor]:
        return (x**2).sum(1), 2 * x

    def sick(x: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        loss, gradient = bowl(x, rows)
        return loss.masked_fill((rows == 0) & (loss < 1), torch.nan), gradient

    def undefined(x: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        # Row 0: everywhere. Row 1: outside a ball that the first trial steps of a line search leave.
        loss, gradient = bowl(x, rows)
        return loss.masked_fill((rows == 0) | (x.abs().amax(1) > 2.5), torch.nan), gradient

    searched = minimize(undefined, zeros(2) + 2.4, box(), iterations=100, learning_rate=50.0)
    for end in (walk(sick, zeros(2) + 2.0, box(), steps=50, learning_rate=0.3), searched):
        assert end.loss[0] == torch.inf
        assert end.loss[1] < 1e-6
        assert end.evaluations[0] < end.evaluations[1]
    assert searched.evaluations[0] == 1
    assert walk(bowl, zeros(1), box(), steps=100, learning_rate=1.0).evaluations.tolist() == [1]


# ---- Adam and SGD, against torch's optimizers

CENTRE = torch.linspace(-2, 2, 3 * D).double().view(3, D)
WEIGHT = torch.linspace(0.5, 3, D).double()
START, EVERY, FREE = torch.zeros(3, D).double(), torch.arange(3), box()


def paraboloid(x: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
    return (WEIGHT * (x - CENTRE[rows]) ** 2).sum(1), 2 * WEIGHT * (x - CENTRE[rows])


def torch_first_order(
    optimizer: str, signed: bool, iterations: int, rate: float, bound: float
) -> list[tuple[float, Tensor]]:
    best = []
    for row in range(3):
        x = torch.zeros(D, dtype=torch.float64, requires_grad=True)
        adam = optimizer == "adam"
        stepper = torch.optim.Adam([x], rate) if adam else torch.optim.SGD([x], rate, momentum=0.9, nesterov=True)
        milestones = [eighths * iterations // 8 for eighths in (3, 5, 7)]
        schedule = torch.optim.lr_scheduler.MultiStepLR(stepper, milestones, 0.1)
        seen = []
        for _ in range(iterations):
            loss, gradient = paraboloid(x.detach()[None], torch.tensor([row]))
            seen.append((loss.item(), x.detach().clone()))
            x.grad = gradient[0].sign() if signed else gradient[0]
            stepper.step()
            schedule.step()
            with torch.no_grad():
                x.clamp_(-bound, bound)
        best.append(min(seen, key=lambda point: point[0]))
    return best


def test_equals_torch_step_by_step() -> None:
    for optimizer, signed, size in itertools.product(("adam", "sgd"), (True, False), ((3, 9.0), (40, 9.0), (41, 1.5))):
        rate, (iterations, bound) = 0.1 if optimizer == "adam" else 0.02, size
        stages = step_decay_stages([paraboloid] * 4, rate, iterations)
        assert sum(stage.iterations for stage in stages) == iterations
        end = first_order(stages, START, box(-bound, bound), optimizer, signed)
        for row, (loss, point) in enumerate(torch_first_order(optimizer, signed, iterations, rate, bound)):
            assert end.loss[row].item() == pytest.approx(loss, rel=1e-9), (optimizer, signed, size)
            assert torch.allclose(end.unknowns[row], point, atol=1e-9), (optimizer, signed, size)
        assert end.evaluations.tolist() == [iterations] * 3


def test_the_best_iterate_of_the_last_objective_is_kept() -> None:
    diverging = first_order([Stage(paraboloid, 0.5, 30)], CENTRE + 0.1, FREE, "sgd", signed=False)
    assert torch.allclose(diverging.loss, paraboloid(CENTRE + 0.1, EVERY)[0])

    def cheap(x: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        loss, gradient = paraboloid(x, rows)
        return loss - 1e9, gradient

    end = first_order([Stage(cheap, 0.05, 20), Stage(paraboloid, 0.05, 20)], START, FREE, "adam", signed=False)
    assert end.evaluations.tolist() == [40] * 3
    assert (end.loss >= 0).all()
    for found in (diverging, end):
        torch.testing.assert_close(found.loss, paraboloid(found.unknowns, EVERY)[0])


def test_a_trial_that_ever_turns_nan_has_failed_and_the_others_have_not() -> None:
    healthy = first_order([Stage(paraboloid, 0.1, 20)], START, FREE, "adam", signed=True).unknowns
    for where in ("loss", "gradient"):
        calls = itertools.count()

        def sick(x: Tensor, rows: Tensor, where=where, calls=calls) -> tuple[Tensor, Tensor]:
            loss, gradient = paraboloid(x, rows)
            if next(calls) == 5:
                (loss if where == "loss" else gradient[:, 0])[1] = torch.nan
            return loss, gradient

        end = first_order([Stage(sick, 0.1, 20)], START, FREE, "adam", signed=True)
        assert end.loss.isfinite().tolist() == [True, False, True], where
        assert torch.equal(end.unknowns[[0, 2]], healthy[[0, 2]])
