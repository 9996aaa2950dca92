"""Batched L-BFGS with a line search against SciPy."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.optimize import minimize as scipy_minimize
from scipy.optimize import rosen, rosen_der
from torch import Tensor

from attacks.gradient.inversion_loop import Objective
from attacks.gradient.lbfgs import minimize

D = 6
FREE = (torch.full((D,), -torch.inf).double(), torch.full((D,), torch.inf).double())


def quadratics(count: int, condition: float = 100.0) -> tuple[Objective, Tensor, Tensor]:
    """f_t(x) = (x - c_t)' A_t (x - c_t) / 2 with eigenvalues of A_t from 10^t to condition * 10^t; returns A and c too."""
    generator = torch.Generator().manual_seed(0)
    basis = torch.linalg.qr(torch.randn(count, D, D, generator=generator, dtype=torch.float64)).Q
    values = torch.logspace(0, np.log10(condition), D).double() * 10.0 ** torch.arange(count)[:, None]
    matrix = basis @ torch.diag_embed(values) @ basis.mT
    centre = torch.randn(count, D, generator=generator, dtype=torch.float64)

    def objective(x: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        gradient = (matrix[rows] @ (x - centre[rows])[:, :, None])[:, :, 0]
        return 0.5 * ((x - centre[rows]) * gradient).sum(1), gradient

    return objective, matrix, centre


def one_by_one(objective: Objective, row: int):
    def value_and_gradient(x: np.ndarray) -> tuple[float, np.ndarray]:
        loss, gradient = objective(torch.from_numpy(x)[None], torch.tensor([row]))
        return loss.item(), gradient[0].numpy()

    return value_and_gradient


def test_quadratics_of_different_scale_reach_the_optimum_of_scipy():
    objective, _, centre = quadratics(4)
    start = torch.zeros(4, D).double()
    end = minimize(objective, start, FREE, iterations=120)
    for row in range(4):
        oracle = scipy_minimize(
            one_by_one(objective, row), np.zeros(D), jac=True, method="L-BFGS-B", options={"maxiter": 500}
        )
        assert np.abs(end.unknowns[row].numpy() - oracle.x).max() < 1e-3
        assert end.loss[row] <= oracle.fun + 1e-8
    assert torch.allclose(end.unknowns, centre, atol=1e-6)
    assert torch.allclose(end.loss, objective(end.unknowns, torch.arange(4))[0])


def test_box_is_respected_and_gives_the_constrained_optimum_of_scipy():
    objective, _, _ = quadratics(3, condition=20)
    bounds = (torch.full((D,), -0.3).double(), torch.full((D,), 0.4).double())
    end = minimize(objective, torch.zeros(3, D).double(), bounds, iterations=400)
    assert (end.unknowns >= bounds[0]).all()
    assert (end.unknowns <= bounds[1]).all()
    for row in range(3):
        oracle = scipy_minimize(
            one_by_one(objective, row), np.zeros(D), jac=True, method="L-BFGS-B", bounds=[(-0.3, 0.4)] * D
        )
        assert end.loss[row].item() == pytest.approx(oracle.fun, rel=1e-3)


def test_rosenbrock_is_solved_from_several_starts():
    def objective(x: Tensor, _: Tensor) -> tuple[Tensor, Tensor]:
        points = x.numpy()
        return torch.from_numpy(np.array([rosen(p) for p in points])), torch.from_numpy(
            np.stack([rosen_der(p) for p in points])
        )

    start = 0.5 * torch.randn(5, D, generator=torch.Generator().manual_seed(1), dtype=torch.float64) + 1
    end = minimize(objective, start, FREE, iterations=500)
    assert end.loss.max() < 1e-10
    assert torch.allclose(end.unknowns, torch.ones(5, D).double(), atol=1e-4)


def test_kinks_do_not_stop_it():
    target = torch.linspace(-1, 1, D).double()

    def objective(x: Tensor, _: Tensor) -> tuple[Tensor, Tensor]:
        weight = torch.arange(1.0, D + 1).double()
        return (weight * (x - target).abs()).sum(1), weight * (x - target).sign()

    end = minimize(objective, torch.zeros(1, D).double() + 0.123, FREE, iterations=400)
    assert end.loss.item() < 0.01 * objective(torch.zeros(1, D).double() + 0.123, torch.tensor([0]))[0].item()


def test_a_problem_is_solved_the_same_in_any_company():
    objective, _, _ = quadratics(4)
    together = minimize(objective, torch.zeros(4, D).double(), FREE, iterations=40)
    for row in range(4):
        alone = minimize(
            lambda x, _, row=row: objective(x, torch.full((len(x),), row)), torch.zeros(1, D).double(), FREE, 40
        )
        assert torch.allclose(alone.unknowns[0], together.unknowns[row], atol=1e-9)


def test_finished_problems_cost_nothing_more():
    objective, _, centre = quadratics(3)
    start = centre.clone()
    start[2] += 1
    calls: list[int] = []

    def counted(x: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        calls.append(len(rows))
        return objective(x, rows)

    end = minimize(counted, start, FREE, iterations=1000)
    assert sum(calls) == end.evaluations.sum().item()
    assert end.evaluations.max() < 1000
    assert torch.allclose(end.unknowns, centre, atol=1e-6)


def test_nan_at_the_start_fails_that_problem_and_nan_on_the_way_is_a_step_too_far():
    def objective(x: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        # Row 0: undefined everywhere. Row 1: x^4 within a ball that the first trial steps leave.
        loss, gradient = (x**4).sum(1), 4 * x**3
        wild = (rows == 0) | (x.abs().amax(1) > 2.5)
        return loss.masked_fill(wild, torch.nan), gradient.masked_fill(wild[:, None], torch.nan)

    end = minimize(objective, torch.full((2, D), 2.4).double(), FREE, iterations=100, learning_rate=50.0)
    assert end.loss[0] == torch.inf
    assert end.loss[1] < 1e-3
    assert end.evaluations[0] == 1
