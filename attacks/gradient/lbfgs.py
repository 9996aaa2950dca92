"""L-BFGS on many independent problems at once: with a line search, and with the fixed step of ``torch.optim.LBFGS``."""

import functools
from collections.abc import Callable

import torch
from torch import Tensor

from attacks.descent import reported
from attacks.gradient.inversion_loop import Minimum, Objective

SUFFICIENT_DECREASE = 1e-4
CURVATURE = 0.9
MOST_TRIES = 20
SEARCH_HISTORY = 10
"""Pairs (step, change of gradient) that each problem keeps, with a line search."""
STEP_ITERATIONS = 20
"""Quasi-Newton iterations of one step (torch's ``max_iter``), and so its evaluations at most."""
HISTORY = 100
"""Pairs with a fixed step."""
GRADIENT_TOLERANCE = 1e-7
CHANGE_TOLERANCE = 1e-9
LEAST_CURVATURE = 1e-10


class _History:
    """Pairs (step, change of gradient) of each problem; rows are problems: (T, ...). A row's i-th pair is in slot i % H.

    ``scale`` is 1 / (change . step) of a pair, 0 where a slot is empty.
    """

    def __init__(self, start: Tensor, slots: int) -> None:
        trials, size = start.shape
        self.steps, self.changes = (start.new_zeros(trials, slots, size) for _ in "ab")
        self.scale = start.new_zeros(trials, slots)
        self.pairs = torch.zeros(trials, dtype=torch.long, device=start.device)

    def keep(self, rows: Tensor, step: Tensor, change: Tensor, curvature: Tensor) -> None:
        """Adds a pair to each of the rows, in place of its oldest."""
        slot = self.pairs[rows] % self.scale.shape[1]
        self.steps[rows, slot], self.changes[rows, slot], self.scale[rows, slot] = step, change, 1 / curvature
        self.pairs[rows] += 1

    def newest(self, rows: Tensor, age: int = 0) -> Tensor:
        """The slot (n,) of the newest pair, or of one that is older by ``age``."""
        slots: Tensor = (self.pairs[rows] - 1 - age) % self.scale.shape[1]
        return slots

    def direction(self, rows: Tensor, gradient: Tensor, scaled: Callable[[Tensor], Tensor]) -> Tensor:
        """The quasi-Newton direction (n, D) by the two-loop recursion; ``scaled`` multiplies by the first Hessian's inverse."""
        filled = min(int(self.pairs[rows].max()), self.scale.shape[1]) if len(rows) else 0
        newest_first = [self.newest(rows, age) for age in range(filled)]
        direction, weights = -gradient, []
        for slot in newest_first:
            weight = self.scale[rows, slot] * (self.steps[rows, slot] * direction).sum(1)
            direction = direction - weight[:, None] * self.changes[rows, slot]
            weights.append(weight)
        direction = scaled(direction)
        for slot in reversed(newest_first):
            correction = weights.pop() - self.scale[rows, slot] * (self.changes[rows, slot] * direction).sum(1)
            direction = direction + correction[:, None] * self.steps[rows, slot]
        return direction


class _State(_History):
    """Of a search along lines; rows are problems: (T, ...)."""

    def __init__(self, start: Tensor) -> None:
        super().__init__(start, SEARCH_HISTORY)
        row = start.new_zeros(len(start))
        self.at, self.gradient, self.along = start.clone(), torch.zeros_like(start), torch.zeros_like(start)
        self.loss, self.step, self.low = row.clone(), row.clone(), row.clone()
        self.high = torch.full_like(row, torch.inf)
        self.tries = torch.zeros_like(row, dtype=torch.long)
        self.running = torch.ones_like(row, dtype=torch.bool)


def minimize(
    objective: Objective, start: Tensor, bounds: tuple[Tensor, Tensor], iterations: int, learning_rate: float = 1.0
) -> Minimum:
    """Limited-memory BFGS with a line search, projected on a box; with a fixed step it is ``walk``.

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
        free = state.at[rows] + state.step[rows, None] * state.along[rows]
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
    state.keep(rows[keep], step[keep], change[keep], curvature[keep])
    state.at[rows], state.loss[rows], state.gradient[rows] = point, loss, gradient
    _aim(state, rows, learning_rate)


def _aim(state: _State, rows: Tensor, learning_rate: float) -> None:
    """Sets the quasi-Newton direction and the first step along it."""
    newest = state.newest(rows)
    scale = state.scale[rows, newest]
    empty = scale == 0
    curvature = scale * state.changes[rows, newest].square().sum(1)
    divisor = torch.where(empty, torch.ones_like(curvature), curvature)[:, None]
    state.along[rows] = state.direction(rows, state.gradient[rows], lambda direction: direction / divisor)
    first = 1 / state.gradient[rows].abs().sum(1).clamp(min=1)
    state.step[rows] = learning_rate * torch.where(empty, first, torch.ones_like(first))
    state.low[rows], state.high[rows], state.tries[rows] = 0, torch.inf, 0


class _Walk(_History):
    """Rows are problems: (T, ...). ``moved`` is the last step (direction times its length), whether the point was clamped since or
    not: torch does not look either.
    """

    def __init__(self, start: Tensor, slots: int) -> None:
        super().__init__(start, slots)
        self.at, self.gradient, self.moved = start.clone(), torch.zeros_like(start), torch.zeros_like(start)
        self.initial, self.evaluations = start.new_ones(len(start)), torch.zeros_like(self.pairs)
        self.best, self.lowest = start.clone(), start.new_full((len(start),), torch.inf)
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
        kept = curvature > LEAST_CURVATURE
        rows, step, change, curvature = rows[kept], step[kept], change[kept], curvature[kept]
        self.keep(rows, step, change, curvature)
        self.initial[rows] = curvature / change.square().sum(1)


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
        direction = state.direction(rows, gradient, functools.partial(torch.mul, state.initial[rows, None]))
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
