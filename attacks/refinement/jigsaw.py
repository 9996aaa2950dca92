"""Placing the pixels of an image plane so that neighbours are alike, each inside its window."""

import functools
from itertools import permutations

import torch
from torch import Tensor

from attacks.assignment import assigned

FEW = 4
"""Windows of at most so many pixels are solved by trying every order."""


def place_pixels(plane: Tensor, windows: list[Tensor], sweeps: int) -> tuple[float, float]:
    """Reorder the pixels of every window in place, lowering the sum of all seam costs until no window finds a better order.

    The first sweep looks at seams inside windows only, since the neighbours are still shuffled; the others at all seams. The cost
    of a seam is twice the difference of its pixels. A window of up to 4 pixels tries every order. A larger one tries the best swap
    of two, and the optimal assignment of its pixels to positions where the cost of a pixel at a position is that of its seams to
    what lies around it now.

    Args:
        plane: (H, W), overwritten.
        windows: Positions of the pixels of each window, (k,) int64.
        sweeps: Most visits of each window.

    Returns:
        The sum of all seam costs before and after.
    """
    rows, columns = plane.shape
    pixels = plane.flatten()[:, None].clone()
    puzzle = _Puzzle(2 * torch.cdist(pixels, pixels, p=1.0), rows, columns)
    before = puzzle.total()
    for sweep in range(sweeps):
        changed = [puzzle.improve(window, inside_only=sweep == 0) for window in windows]
        if sweep > 0 and not any(changed):
            break
    if puzzle.total() > before:  # the first sweep may trade outer seams for inner ones
        puzzle.block = torch.arange(rows * columns)
    plane.copy_(pixels[puzzle.block].view_as(plane))
    return before, puzzle.total()


class _Puzzle:
    """Pixels (blocks) in a grid; ``cost[a, b]`` is that of a seam between blocks a and b, on either side of it."""

    def __init__(self, cost: Tensor, rows: int, columns: int) -> None:
        position = torch.arange(rows * columns).view(rows, columns)
        self.cost = cost
        self.block = position.flatten().clone()
        self.pairs = [
            torch.stack([position[:, :-1].flatten(), position[:, 1:].flatten()]),
            torch.stack([position[:-1].flatten(), position[1:].flatten()]),
        ]
        self.columns, self.rows = columns, rows
        self.known: dict[int, tuple[Tensor, Tensor]] = {}
        self.step = 0
        self.moved = torch.zeros(rows * columns, dtype=torch.int64)
        """The step in which the block at a position was last exchanged."""
        self.settled: dict[int, tuple[int, Tensor]] = {}
        """First position of a window -> the step in which no order was better, and all positions that this depends on."""

    def total(self) -> float:
        """Sum over all seams."""
        return sum(float(self.cost[self.block[a], self.block[b]].sum()) for a, b in self.pairs)

    def improve(self, window: Tensor, inside_only: bool) -> bool:
        """Gives the window the best order that is tried; whether it changed. Where nothing changed since it stayed, it stays."""
        self.step += 1
        first = int(window[0])
        if not inside_only and first in self.settled:
            since, reach = self.settled[first]
            if int(self.moved[reach].max()) <= since:
                return False
        current = self.block[window]
        inner, (inside, around) = self._seams(window)
        outer = torch.zeros(
            len(window), len(window)
        )  # (k positions, k blocks): cost of the seams to what lies around now
        if not inside_only:
            outer.index_add_(0, inside, self.cost[current[None], self.block[around, None]])
        orders = self._orders(current, inner, outer)
        held = current[orders]  # (orders, k): the block at each position of the window
        costs = outer[torch.arange(len(window)), orders].sum(1)
        costs = costs + self.cost[held[:, inner[0]], held[:, inner[1]]].sum(1)
        best = int(costs.argmin())
        if not costs[best] < costs[0] - 1e-6:  # the first order is the present one
            if not inside_only:
                self.settled[first] = (self.step, torch.cat([window, around]))
            return False
        self.block[window] = held[best]
        self.moved[window] = self.step
        return True

    def _seams(self, window: Tensor) -> tuple[Tensor, Tensor]:
        """Seams inside, and those to what lies around, (2, seams) each.

        Inside: the positions in the window before and after the seam. Around: positions in the window and outside. Both depend on
        the window alone, and are found once.
        """
        first = int(window[0])
        if first not in self.known:
            number = torch.full((self.rows * self.columns,), -1)
            number[window] = torch.arange(len(window))
            inner, outer = [], []
            for before, after in self.pairs:
                a, b = number[before], number[after]
                within, out, into = (a >= 0) & (b >= 0), (a >= 0) & (b < 0), (b >= 0) & (a < 0)
                inner.append(torch.stack([a[within], b[within]]))
                outer += [torch.stack([a[out], after[out]]), torch.stack([b[into], before[into]])]
            self.known[first] = torch.cat(inner, 1), torch.cat(outer, 1)
        return self.known[first]

    def _orders(self, current: Tensor, inner: Tensor, outer: Tensor) -> Tensor:
        """Orders (m, k) to try; order[i] is which of the window's present blocks goes to position i."""
        k = len(current)
        if k <= FEW:
            return _all_orders(k)
        around, (a, b) = outer.clone(), inner
        around.index_add_(0, a, self.cost[current[None], current[b, None]])
        around.index_add_(0, b, self.cost[current[a, None], current[None]])
        swapped = torch.arange(k)
        p, q = divmod(int(self._swap_gains(around, current, inner).argmin()), k)
        swapped[p], swapped[q] = q, p
        return torch.stack([torch.arange(k), swapped, assigned(around)])

    def _swap_gains(self, around: Tensor, current: Tensor, inner: Tensor) -> Tensor:
        """What every swap of two blocks adds to the cost, (k, k); ``around``: cost of each block at each position now."""
        stay = around.diagonal()
        added = around + around.T - stay[:, None] - stay[None]
        a, b = inner
        # Between neighbours the seam itself turns around, where ``around`` has either block beside itself, at no cost.
        turned = 2 * self.cost[current[a], current[b]]
        added[a, b] += turned
        added[b, a] += turned
        return added


@functools.cache
def _all_orders(k: int) -> Tensor:
    """Every order of k blocks, (k!, k), the present one first; read only."""
    return torch.tensor(list(permutations(range(k))))
