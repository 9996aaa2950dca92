"""L-BFGS with a line search on many independent problems at once, each with its own history, step and search."""

from __future__ import annotations

import torch
from torch import Tensor

from attacks.descent import reported
from attacks.gradient.inversion_loop import Minimum, Objective

SUFFICIENT_DECREASE = 1e-4
CURVATURE = 0.9
MOST_TRIES = 20
HISTORY = 10
"""Pairs (step, change of gradient) that each problem keeps."""


class _State:
    """Rows are problems: (T, ...). ``steps``, ``changes`` and ``scale`` hold the history, newest last; scale 0 is an empty slot."""

    def __init__(self, start: Tensor) -> None:
        trials, size = start.shape
        row = start.new_zeros(trials)
        self.at, self.gradient, self.direction = start.clone(), torch.zeros_like(start), torch.zeros_like(start)
        self.loss, self.step, self.low = row.clone(), row.clone(), row.clone()
        self.high = torch.full_like(row, torch.inf)
        self.tries = torch.zeros_like(row, dtype=torch.long)
        self.steps, self.changes = (start.new_zeros(trials, HISTORY, size) for _ in "ab")
        self.scale = start.new_zeros(trials, HISTORY)
        self.running = torch.ones_like(row, dtype=torch.bool)


def minimize(
    objective: Objective, start: Tensor, bounds: tuple[Tensor, Tensor], iterations: int, learning_rate: float = 1.0
) -> Minimum:
    """Limited-memory BFGS with a line search, projected on a box; with a fixed step it is ``attacks.gradient.lbfgs_steps``.

    Every step satisfies the weak Wolfe conditions along the projected path: a bracket [low, high] is halved while the loss has
    not decreased enough, doubled while the slope is still too steep. This needs no smoothness, so it also copes with total
    variation. ``learning_rate`` is the first step that a line search tries, and ``iterations`` count evaluations of the objective
    for each problem, line searches included; the others are as of ``first_order``.

    Returns:
        The best evaluated point of each problem. A problem ends early when no step decreases its loss, and fails when its loss or
        gradient is not finite at the start (during a line search such a point is only a step too far).

    Source: Nocedal, "Updating quasi-Newton matrices with limited storage", 1980; bracketing: Lewis and Overton, "Nonsmooth
    optimization via quasi-Newton methods", 2013, Algorithm 2.6.
    """
    state = _State(start.clamp(*bounds))
    best, lowest = state.at.clone(), torch.full_like(state.loss, torch.inf)
    evaluations = torch.zeros(len(start), dtype=torch.long, device=start.device)
    for iteration in reported(range(iterations), iterations):
        rows = state.running.nonzero()[:, 0]
        if not len(rows):
            break
        free = state.at[rows] + state.step[rows, None] * state.direction[rows]
        point = free.clamp(*bounds)
        loss, gradient = objective(point, rows)
        evaluations[rows] += 1
        finite = loss.isfinite() & gradient.isfinite().all(1)
        loss = loss.masked_fill(~finite, torch.inf)
        better = rows[loss < lowest[rows]]
        best[better], lowest[better] = point[loss < lowest[rows]], loss[loss < lowest[rows]]
        if iteration == 0:
            accepted = finite
            state.running[rows[~finite]] = False
        else:
            accepted = _wolfe(state, rows, point, loss, gradient, (free != point).any(1), learning_rate)
        _accept(state, rows[accepted], point[accepted], loss[accepted], gradient[accepted], learning_rate)
    return Minimum(best, lowest, evaluations)


def _wolfe(
    state: _State, rows: Tensor, point: Tensor, loss: Tensor, gradient: Tensor, clipped: Tensor, learning_rate: float
) -> Tensor:
    """Decides which rows accept their point, and gives the others their next step, a fresh direction or their end."""
    moved = point - state.at[rows]
    slope = (state.gradient[rows] * moved).sum(1)
    decreased = (slope < 0) & (loss <= state.loss[rows] + SUFFICIENT_DECREASE * slope)
    # On the walls of the box a longer step may not move at all, so the slope is no reason to try one.
    flat = ((gradient * moved).sum(1) >= CURVATURE * slope) | clipped
    state.tries[rows] += 1
    exhausted = state.tries[rows] >= MOST_TRIES
    accepted = decreased & (flat | exhausted)

    step, low, high = state.step[rows], state.low[rows], state.high[rows]
    low = torch.where(decreased, step, low)
    high = torch.where(decreased, high, step)
    step = torch.where(high.isinf(), 2 * step, (low + high) / 2)
    # Out of tries: ``low`` is known to decrease the loss, so that its next evaluation is accepted.
    step = torch.where(exhausted, low, step)
    state.step[rows], state.low[rows], state.high[rows] = step, low, high

    stuck = rows[~accepted & exhausted & (low == 0)]
    has_history = (state.scale[stuck] != 0).any(1)
    state.running[stuck[~has_history]] = False
    again = stuck[has_history]
    state.scale[again] = 0
    _aim(state, again, learning_rate)
    return accepted


def _accept(state: _State, rows: Tensor, point: Tensor, loss: Tensor, gradient: Tensor, learning_rate: float) -> None:
    step, change = point - state.at[rows], gradient - state.gradient[rows]
    curvature = (step * change).sum(1)
    keep = curvature > 1e-10 * change.square().sum(1)
    for memory, newest in (
        (state.steps, step),
        (state.changes, change),
        (state.scale, torch.where(keep, 1 / curvature, torch.zeros_like(curvature))),
    ):
        kept = rows[keep]
        memory[kept] = torch.cat([memory[kept, 1:], newest[keep, None]], 1)
    state.at[rows], state.loss[rows], state.gradient[rows] = point, loss, gradient
    _aim(state, rows, learning_rate)


def _aim(state: _State, rows: Tensor, learning_rate: float) -> None:
    """Sets the quasi-Newton direction (two-loop recursion) and the first step along it."""
    steps, changes, scale = state.steps[rows], state.changes[rows], state.scale[rows]
    direction = -state.gradient[rows]
    weights = []
    for slot in reversed(range(scale.shape[1])):
        weight = scale[:, slot] * (steps[:, slot] * direction).sum(1)
        direction = direction - weight[:, None] * changes[:, slot]
        weights.append(weight)
    empty = scale[:, -1] == 0
    curvature = scale[:, -1] * changes[:, -1].square().sum(1)
    direction = direction / torch.where(empty, torch.ones_like(curvature), curvature)[:, None]
    for slot in range(scale.shape[1]):
        correction = weights.pop() - scale[:, slot] * (changes[:, slot] * direction).sum(1)
        direction = direction + correction[:, None] * steps[:, slot]
    first = 1 / state.gradient[rows].abs().sum(1).clamp(min=1)
    state.direction[rows] = direction
    state.step[rows] = learning_rate * torch.where(empty, first, torch.ones_like(first))
    state.low[rows], state.high[rows], state.tries[rows] = 0, torch.inf, 0
