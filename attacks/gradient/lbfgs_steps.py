"""L-BFGS with a fixed step, as ``torch.optim.LBFGS`` walks without a line search, on many independent problems at once."""

from __future__ import annotations

import torch
from torch import Tensor

from attacks.descent import reported
from attacks.gradient.inversion_loop import Minimum, Objective

STEP_ITERATIONS = 20
"""Quasi-Newton iterations of one step (torch's ``max_iter``), and so its evaluations at most."""
HISTORY = 100
GRADIENT_TOLERANCE = 1e-7
CHANGE_TOLERANCE = 1e-9
LEAST_CURVATURE = 1e-10


class _Walk:
    """Rows are problems: (T, ...). The i-th pair of a row is in slot i % H of ``steps`` and ``changes``.

    ``scale`` is 1 / (change . step) of a pair, 0 where a slot is empty. ``moved`` is the last step (direction times its length),
    whether the point was clamped since or not: torch does not look either.
    """

    def __init__(self, start: Tensor, slots: int) -> None:
        trials, size = start.shape
        self.at, self.gradient, self.moved = start.clone(), torch.zeros_like(start), torch.zeros_like(start)
        self.steps, self.changes = (start.new_zeros(trials, slots, size) for _ in "ab")
        self.scale, self.initial = start.new_zeros(trials, slots), start.new_ones(trials)
        self.pairs, self.evaluations = (torch.zeros(trials, dtype=torch.long, device=start.device) for _ in "ab")
        self.best, self.lowest = start.clone(), start.new_full((trials,), torch.inf)
        self.running = torch.ones_like(self.pairs, dtype=torch.bool)

    def evaluate(self, objective: Objective, rows: Tensor, signed: bool) -> tuple[Tensor, Tensor, Tensor]:
        """The rows whose loss (n,) and gradient (n, D) are finite, and these; the others fail."""
        loss, gradient = objective(self.at[rows], rows)
        self.evaluations[rows] += 1
        finite = loss.isfinite() & gradient.isfinite().all(1)
        self.running[rows[~finite]] = False
        self.lowest[rows[~finite]] = torch.inf
        rows, loss, gradient = rows[finite], loss[finite], gradient[finite]
        better = loss < self.lowest[rows]
        self.best[rows[better]], self.lowest[rows[better]] = self.at[rows[better]], loss[better]
        return rows, loss, gradient.sign() if signed else gradient

    def remember(self, rows: Tensor, gradient: Tensor) -> None:
        """Keeps the pair of the last step and the change of gradient over it, where its curvature is positive."""
        step, change = self.moved[rows], gradient - self.gradient[rows]
        curvature = (step * change).sum(1)
        keep = curvature > LEAST_CURVATURE
        kept, step, change, curvature = rows[keep], step[keep], change[keep], curvature[keep]
        slot = self.pairs[kept] % self.scale.shape[1]
        self.steps[kept, slot], self.changes[kept, slot], self.scale[kept, slot] = step, change, 1 / curvature
        self.initial[kept] = curvature / change.square().sum(1)
        self.pairs[kept] += 1

    def direction(self, rows: Tensor, gradient: Tensor) -> Tensor:
        """The quasi-Newton direction (n, D): the two-loop recursion."""
        slots = self.scale.shape[1]
        filled = min(int(self.pairs[rows].max()), slots)
        newest_first = [(self.pairs[rows] - 1 - age) % slots for age in range(filled)]
        direction, weights = -gradient, []
        for slot in newest_first:
            weight = self.scale[rows, slot] * (self.steps[rows, slot] * direction).sum(1)
            direction = direction - weight[:, None] * self.changes[rows, slot]
            weights.append(weight)
        direction = direction * self.initial[rows, None]
        for slot in reversed(newest_first):
            correction = weights.pop() - self.scale[rows, slot] * (self.changes[rows, slot] * direction).sum(1)
            direction = direction + correction[:, None] * self.steps[rows, slot]
        return direction


def walk(
    objective: Objective,
    start: Tensor,
    bounds: tuple[Tensor, Tensor],
    steps: int,
    learning_rate: float,
    signed: bool = False,
) -> Minimum:
    """Runs ``steps`` calls of ``torch.optim.LBFGS(lr=learning_rate).step`` on each problem; clamps to the box behind each call.

    A call makes up to 20 iterations of ``learning_rate`` times the quasi-Newton direction, and ends sooner where the loss or the
    point hardly changes. The very first iteration of a problem is shortened to learning_rate * min(1, 1 / |g|_1). With ``signed``
    every gradient is replaced by its sign, as the released configuration of ATS does; the others are as of ``first_order``.

    Returns:
        The best evaluated point of each problem (torch's user takes the last). A problem ends early where its gradient vanishes or
        the direction no longer descends, and fails when a loss or gradient is not finite.

    Source: Nocedal, "Updating quasi-Newton matrices with limited storage", 1980, with the tolerances and the history of 100 pairs
    of ``torch.optim.LBFGS``.
    """
    state = _Walk(start.clamp(*bounds), min(HISTORY, STEP_ITERATIONS * steps))
    for step in reported(range(steps), steps):
        rows = state.running.nonzero()[:, 0]
        if not len(rows):
            break
        _step(state, objective, rows, learning_rate, signed, first=step == 0)
        state.at[rows] = state.at[rows].clamp(*bounds)
    return Minimum(state.best, state.lowest, state.evaluations)


def _step(state: _Walk, objective: Objective, rows: Tensor, learning_rate: float, signed: bool, first: bool) -> None:
    """One call of torch's ``step`` on each of the rows."""
    rows, loss, gradient = state.evaluate(objective, rows, signed)
    going = gradient.abs().amax(1) > GRADIENT_TOLERANCE
    # Nothing has changed by the next call, which would stop here as well.
    state.running[rows[~going]] = False
    rows, loss, gradient = rows[going], loss[going], gradient[going]
    for iteration in range(STEP_ITERATIONS):
        if not len(rows):
            return
        opening = first and iteration == 0
        if not opening:
            state.remember(rows, gradient)
        direction = state.direction(rows, gradient)
        length = 1 / gradient.abs().sum(1).clamp(min=1) if opening else torch.ones_like(loss)
        state.gradient[rows], state.moved[rows] = gradient, learning_rate * length[:, None] * direction
        descends = (gradient * direction).sum(1) <= -CHANGE_TOLERANCE
        if iteration == 0:
            state.running[rows[~descends]] = False
        rows, before = rows[descends], loss[descends]
        state.at[rows] += state.moved[rows]
        if iteration == STEP_ITERATIONS - 1 or not len(rows):
            return
        finite, loss, gradient = state.evaluate(objective, rows, signed)
        before = before[torch.isin(rows, finite)]
        far = state.moved[finite].abs().amax(1) > CHANGE_TOLERANCE
        going = far & ((loss - before).abs() >= CHANGE_TOLERANCE) & (gradient.abs().amax(1) > GRADIENT_TOLERANCE)
        rows, loss, gradient = finite[going], loss[going], gradient[going]
