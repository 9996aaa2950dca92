"""The batched first-order loop against torch's optimizers."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from attacks.gradient.inversion_loop import Stage, first_order, step_decay_stages

D = 7
FREE = (torch.full((D,), -torch.inf).double(), torch.full((D,), torch.inf).double())
CENTRE = torch.linspace(-2, 2, 3 * D).double().view(3, D)
WEIGHT = torch.linspace(0.5, 3, D).double()


def objective(x: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
    return (WEIGHT * (x - CENTRE[rows]) ** 2).sum(1), 2 * WEIGHT * (x - CENTRE[rows])


def walk(optimizer: str, signed: bool, iterations: int, rate: float, bound: float) -> list[tuple[float, Tensor]]:
    """What torch does for each row: the (loss, point) of the best evaluated iterate."""
    best = []
    for row in range(3):
        x = torch.zeros(D, dtype=torch.float64, requires_grad=True)
        adam = optimizer == "adam"
        stepper = torch.optim.Adam([x], rate) if adam else torch.optim.SGD([x], rate, momentum=0.9, nesterov=True)
        milestones = [eighths * iterations // 8 for eighths in (3, 5, 7)]
        schedule = torch.optim.lr_scheduler.MultiStepLR(stepper, milestones, 0.1)
        seen = []
        for _ in range(iterations):
            loss, gradient = objective(x.detach()[None], torch.tensor([row]))
            seen.append((loss.item(), x.detach().clone()))
            x.grad = gradient[0].sign() if signed else gradient[0]
            stepper.step()
            schedule.step()
            with torch.no_grad():
                x.clamp_(-bound, bound)
        best.append(min(seen, key=lambda point: point[0]))
    return best


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
@pytest.mark.parametrize("signed", [True, False])
@pytest.mark.parametrize(("iterations", "bound"), [(3, 9.0), (40, 9.0), (41, 1.5)])
def test_equals_torch_step_by_step(optimizer, signed, iterations, bound):
    rate = 0.1 if optimizer == "adam" else 0.02
    stages = step_decay_stages([objective] * 4, rate, iterations)
    assert sum(stage.iterations for stage in stages) == iterations
    end = first_order(
        stages, torch.zeros(3, D).double(), (FREE[0].clamp(-bound), FREE[1].clamp(max=bound)), optimizer, signed
    )
    for row, (loss, point) in enumerate(walk(optimizer, signed, iterations, rate, bound)):
        assert end.loss[row].item() == pytest.approx(loss, rel=1e-9)
        assert torch.allclose(end.unknowns[row], point, atol=1e-9)
    assert end.evaluations.tolist() == [iterations] * 3


def test_the_best_iterate_is_kept_when_the_walk_diverges():
    end = first_order([Stage(objective, 0.5, 30)], CENTRE + 0.1, FREE, "sgd", signed=False)
    assert torch.equal(end.loss, objective(end.unknowns, torch.arange(3))[0])
    assert torch.allclose(end.loss, objective(CENTRE + 0.1, torch.arange(3))[0])


def test_losses_of_an_earlier_objective_do_not_compete():
    def cheap(x: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        loss, gradient = objective(x, rows)
        return loss - 1e9, gradient

    end = first_order(
        [Stage(cheap, 0.05, 20), Stage(objective, 0.05, 20)], torch.zeros(3, D).double(), FREE, "adam", signed=False
    )
    assert torch.allclose(end.loss, objective(end.unknowns, torch.arange(3))[0])
    assert (end.loss >= 0).all()


@pytest.mark.parametrize("where", ["loss", "gradient"])
def test_a_trial_that_ever_turns_nan_has_failed_and_the_others_have_not(where):
    calls = iter(range(100))

    def sick(x: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        loss, gradient = objective(x, rows)
        if next(calls) == 5:
            (loss if where == "loss" else gradient[:, 0])[1] = torch.nan
        return loss, gradient

    end = first_order([Stage(sick, 0.1, 20)], torch.zeros(3, D).double(), FREE, "adam", signed=True)
    assert end.loss.isfinite().tolist() == [True, False, True]
    assert torch.equal(
        end.unknowns[[0, 2]],
        first_order([Stage(objective, 0.1, 20)], torch.zeros(3, D).double(), FREE, "adam", True).unknowns[[0, 2]],
    )
