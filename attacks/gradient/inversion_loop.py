"""First-order descent on many independent problems at once; the rows of every matrix (T, D) are problems."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from attacks.descent import reported

Direction = Callable[[Tensor, Tensor, int], Tensor]
"""(gradients (n, D), which problems these rows are (n,), number of the step) -> what a step subtracts (n, D)."""
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


FEWEST_LOOKED_AT = 50
"""Iterations within which a trial's objective must fall at least; a tenth of all if these are more."""


def first_order(
    stages: Sequence[Stage],
    start: Tensor,
    bounds: tuple[Tensor, Tensor],
    optimizer: str,
    signed: bool,
    least_fall: float = 0.0,
) -> Minimum:
    """Adam (beta 0.9, 0.999) or SGD with Nesterov momentum 0.9, projected on a box after every step.

    Args:
        stages: One after the other; the optimizer keeps its momentum between them.
        start: (T, D).
        bounds: Lowest and highest value of each unknown, (D,) each.
        optimizer: "adam" or "sgd".
        signed: The optimizer gets the sign of the gradient (Geiping et al. 2020, section 4).
        least_fall: A trial waits for the next stage when its lowest loss fell by no more than this share of itself within the last
            tenth of all iterations, ``FEWEST_LOOKED_AT`` or more; 0: never. Whether it waits depends on no other trial.

    Returns:
        The best evaluated iterate of each trial under the last objective. A loss or gradient that is not finite makes a trial fail.
    """
    unknowns = start.clamp(*bounds)
    best, lowest = unknowns.clone(), unknowns.new_full((len(start),), torch.inf)
    failed = torch.zeros(len(start), dtype=torch.bool, device=start.device)
    trials = torch.arange(len(start), device=start.device)
    direction = (_adam if optimizer == "adam" else _nesterov)(unknowns)
    objective, evaluations = None, torch.zeros_like(trials)
    before, total = 0, sum(stage.iterations for stage in stages)
    window = max(FEWEST_LOOKED_AT, total // 10)
    for stage in stages:
        if stage.iterations and stage.objective is not objective:
            # Losses of different objectives do not compare.
            objective, lowest = stage.objective, torch.full_like(lowest, torch.inf)
        moving, lows = trials, list[Tensor]()
        for at in reported(range(before, before + stage.iterations), total):
            here = unknowns[moving]
            loss, gradient = stage.objective(here, moving)
            failed[moving] |= ~(loss.isfinite() & gradient.isfinite().all(1))
            better = loss < lowest[moving]
            lowest = lowest.index_copy(0, moving, torch.where(better, loss, lowest[moving]))
            best[moving] = torch.where(better[:, None], here, best[moving])
            step = direction(gradient.sign() if signed else gradient, moving, at + 1)
            unknowns[moving] = (here - stage.learning_rate * step).clamp(*bounds)
            evaluations[moving] += 1
            lows.append(lowest)
            if least_fall and len(lows) > window:
                fell = lows[-1 - window] - lowest
                moving = moving[~(failed | (fell <= least_fall * lowest.abs()))[moving]]
                if not len(moving):
                    break
        before += stage.iterations
    return Minimum(best, lowest.masked_fill(failed, torch.inf), evaluations)


def agreement(loss: Tensor) -> Tensor:
    """Share of the losses (R,) that are within 5 % of the lowest; 0 where all are infinite."""
    best = loss.min()
    # 1e-12: two exact solutions agree.
    return (loss - best <= 0.05 * best.abs() + 1e-12).double().mean() * best.isfinite()


def _adam(like: Tensor) -> Direction:
    means, squares = torch.zeros_like(like), torch.zeros_like(like)
    beta1, beta2 = 0.9, 0.999

    def direction(gradient: Tensor, rows: Tensor, step: int) -> Tensor:
        means[rows] = mean = beta1 * means[rows] + (1 - beta1) * gradient
        squares[rows] = square = beta2 * squares[rows] + (1 - beta2) * gradient.square()
        return mean / (1 - beta1**step) / ((square / (1 - beta2**step)).sqrt() + 1e-8)

    return direction


def _nesterov(like: Tensor) -> Direction:
    velocities = torch.zeros_like(like)

    def direction(gradient: Tensor, rows: Tensor, _: int) -> Tensor:
        velocities[rows] = velocity = 0.9 * velocities[rows] + gradient
        return gradient + 0.9 * velocity

    return direction
