"""First-order descent on many independent problems at once; the rows of every matrix (T, D) are problems."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from attacks.descent import reported

Direction = Callable[[Tensor, int], Tensor]
"""(gradients (T, D), number of the step) -> what a step subtracts (T, D)."""
Objective = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
"""(unknowns (n, D), which problems these rows are (n,) int64) -> (losses (n,), gradients (n, D))."""


class Minimum(NamedTuple):
    """Where each of T trials ended.

    Attributes:
        unknowns: (T, D), the iterate with the lowest loss.
        loss: (T,), its loss; ``inf`` where the trial failed.
        evaluations: (T,) int64, how often the loss and its gradient were computed.
    """

    unknowns: Tensor
    loss: Tensor
    evaluations: Tensor


@dataclass(frozen=True)
class Stage:
    """A part of a descent, with a constant objective and step size; ``iterations`` are evaluations of the objective."""

    objective: Objective
    learning_rate: float
    iterations: int


def step_decay_stages(objectives: Sequence[Objective], learning_rate: float, iterations: int) -> list[Stage]:
    """Four stages that end at 3/8, 5/8, 7/8 and all of the iterations, the step size x 0.1 from each to the next.

    One objective per stage. Few iterations may leave the first stages empty.
    """
    ends = [0, *(eighths * iterations // 8 for eighths in (3, 5, 7)), iterations]
    lengths = [end - begin for begin, end in pairwise(ends)]
    return [
        Stage(objective, learning_rate * 0.1**i, length)
        for i, (objective, length) in enumerate(zip(objectives, lengths, strict=True))
    ]


def first_order(
    stages: Sequence[Stage], start: Tensor, bounds: tuple[Tensor, Tensor], optimizer: str, signed: bool
) -> Minimum:
    """Adam (beta 0.9, 0.999) or SGD with Nesterov momentum 0.9, projected on a box after every step.

    Args:
        stages: One after the other; the optimizer keeps its momentum between them.
        start: (T, D).
        bounds: Lowest and highest value of each unknown, (D,) each.
        optimizer: "adam" or "sgd".
        signed: The optimizer gets the sign of the gradient (Geiping et al. 2020, section 4).

    Returns:
        The best evaluated iterate of each trial under the last objective. A loss or gradient that is not finite makes a trial fail.
    """
    unknowns = start.clamp(*bounds)
    best, lowest = unknowns.clone(), unknowns.new_full((len(start),), torch.inf)
    failed = torch.zeros(len(start), dtype=torch.bool, device=start.device)
    trials = torch.arange(len(start), device=start.device)
    direction = (_adam if optimizer == "adam" else _nesterov)(unknowns)
    objective, before, total = None, 0, sum(stage.iterations for stage in stages)
    for stage in stages:
        if stage.iterations and stage.objective is not objective:
            # Losses of different objectives do not compare.
            objective, lowest = stage.objective, torch.full_like(lowest, torch.inf)
        for at in reported(range(before, before + stage.iterations), total):
            loss, gradient = stage.objective(unknowns, trials)
            failed |= ~(loss.isfinite() & gradient.isfinite().all(1))
            better = loss < lowest
            lowest = torch.where(better, loss, lowest)
            best = torch.where(better[:, None], unknowns, best)
            step = direction(gradient.sign() if signed else gradient, at + 1)
            unknowns = (unknowns - stage.learning_rate * step).clamp(*bounds)
        before += stage.iterations
    return Minimum(best, lowest.masked_fill(failed, torch.inf), torch.full_like(trials, total))


def agreement(loss: Tensor) -> Tensor:
    """Share of the losses (R,) that are within 5 % of the lowest; 0 where all are infinite."""
    best = loss.min()
    # 1e-12: two exact solutions agree.
    return (loss - best <= 0.05 * best.abs() + 1e-12).double().mean() * best.isfinite()


def _adam(like: Tensor) -> Direction:
    mean, square = torch.zeros_like(like), torch.zeros_like(like)
    beta1, beta2 = 0.9, 0.999

    def direction(gradient: Tensor, step: int) -> Tensor:
        nonlocal mean, square
        mean = beta1 * mean + (1 - beta1) * gradient
        square = beta2 * square + (1 - beta2) * gradient.square()
        return mean / (1 - beta1**step) / ((square / (1 - beta2**step)).sqrt() + 1e-8)

    return direction


def _nesterov(like: Tensor) -> Direction:
    velocity = torch.zeros_like(like)

    def direction(gradient: Tensor, _: int) -> Tensor:
        nonlocal velocity
        velocity = 0.9 * velocity + gradient
        return gradient + 0.9 * velocity

    return direction
