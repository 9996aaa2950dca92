"""Placing the blocks of an image plane so that their edges fit, each inside its window."""

from __future__ import annotations

from itertools import combinations, permutations

import torch
from torch import Tensor

FEW = 4
"""Windows of at most so many blocks are solved by trying every order."""


def place_blocks(plane: Tensor, side: int, windows: list[Tensor], sweeps: int) -> tuple[float, float]:
    """Reorders the blocks of every window in place, lowering the sum of all seam costs until no window finds a better order.

    The first sweep looks at seams inside windows only, since the neighbours are still shuffled; the others at all seams.
    A window of up to 4 blocks tries every order. A larger one tries every swap of two blocks, and the optimal assignment
    of its blocks to places where the cost of a block at a place is that of its seams to what lies around it now.

    Args:
        plane: (D, H, W), overwritten; the D channels move together.
        side: Side of a block in pixels.
        windows: Positions of the blocks of each window, (k,) int64, in the grid of whole blocks.
        sweeps: Most visits of each window.

    Returns:
        The sum of all seam costs before and after.
    """
    rows, columns = plane.shape[1] // side, plane.shape[2] // side
    tiles = plane.unfold(1, side, side).unfold(2, side, side)
    blocks = tiles.permute(1, 2, 0, 3, 4).reshape(rows * columns, -1, side, side).clone()
    puzzle = _Puzzle(seam_costs(blocks), rows, columns)
    before = puzzle.total()
    for sweep in range(sweeps):
        changed = [puzzle.improve(window, inside_only=sweep == 0) for window in windows]
        if sweep > 0 and not any(changed):
            break
    if puzzle.total() > before:  # the first sweep may trade outer seams for inner ones
        puzzle.block = torch.arange(rows * columns)
    placed = blocks[puzzle.block].view(rows, columns, -1, side, side)
    tiles.copy_(placed.permute(2, 0, 1, 3, 4))
    return before, puzzle.total()


def seam_costs(blocks: Tensor) -> Tensor:
    """How badly one block fits to the right of, and below, another: (n, D, side, side) -> (2, n, n).

    Each block predicts the neighbour's first line of pixels by linear extrapolation from its own last two, and the
    reverse; the cost is the sum of both absolute errors (Pomeranz 2011, Eq. 3, with p = q = 1). Blocks of one pixel
    have no slope: the cost is the absolute difference.
    """
    costs = []
    for turned in (blocks, blocks.transpose(-1, -2)):
        slope = 1 if turned.shape[-1] > 1 else 0
        last, first = turned[..., -1].flatten(1), turned[..., 0].flatten(1)
        ahead = last + slope * (last - turned[..., -1 - slope].flatten(1))
        behind = first + slope * (first - turned[..., slope].flatten(1))
        costs.append(torch.cdist(ahead, first, p=1.0) + torch.cdist(last, behind, p=1.0))
    return torch.stack(costs)


class _Puzzle:
    """Blocks at places of a grid; ``cost[direction, a, b]`` is that of block b right of, or below, block a."""

    def __init__(self, cost: Tensor, rows: int, columns: int) -> None:
        place = torch.arange(rows * columns).view(rows, columns)
        self.cost = cost
        self.block = place.flatten().clone()
        self.pairs = [
            torch.stack([place[:, :-1].flatten(), place[:, 1:].flatten()]),
            torch.stack([place[:-1].flatten(), place[1:].flatten()]),
        ]
        self.columns, self.rows = columns, rows

    def total(self) -> float:
        """Sum over all seams."""
        return sum(float(self.cost[d, self.block[a], self.block[b]].sum()) for d, (a, b) in enumerate(self.pairs))

    def improve(self, window: Tensor, inside_only: bool) -> bool:
        """Gives the window the best order that is tried; whether it changed."""
        current = self.block[window]
        inner, outer = self._seams(window)
        if inside_only:
            outer = torch.zeros_like(outer)
        orders = self._orders(current, inner, outer)
        held = current[orders]  # (orders, k): the block at each place of the window
        costs = outer[torch.arange(len(window)), orders].sum(1)
        for direction, a, b in inner:
            costs = costs + self.cost[direction, held[:, a], held[:, b]]
        best = int(costs.argmin())
        if not costs[best] < costs[0] - 1e-6:  # the first order is the present one
            return False
        self.block[window] = held[best]
        return True

    def _seams(self, window: Tensor) -> tuple[list[tuple[int, int, int]], Tensor]:
        """Seams inside the window, and the cost (k places, k blocks) of those to the blocks around it."""
        index = {place: i for i, place in enumerate(window.tolist())}
        current, inner = self.block[window], []
        outer = torch.zeros(len(window), len(window))
        for place, i in index.items():
            row, column = divmod(place, self.columns)
            for direction, far, step in ((0, column + 1 < self.columns, 1), (1, row + 1 < self.rows, self.columns)):
                if far and place + step in index:
                    inner.append((direction, i, index[place + step]))
                elif far:
                    outer[i] += self.cost[direction, current, self.block[place + step]]
            for direction, near, step in ((0, column > 0, 1), (1, row > 0, self.columns)):
                if near and place - step not in index:
                    outer[i] += self.cost[direction, self.block[place - step], current]
        return inner, outer

    def _orders(self, current: Tensor, inner: list[tuple[int, int, int]], outer: Tensor) -> Tensor:
        """Orders (m, k) to try; order[i] is which of the window's present blocks goes to place i."""
        k = len(current)
        if k <= FEW:
            return torch.tensor(list(permutations(range(k))))
        swaps = torch.arange(k).repeat(k * (k - 1) // 2 + 1, 1)
        for row, (a, b) in enumerate(combinations(range(k), 2), start=1):
            swaps[row, a], swaps[row, b] = b, a
        around = outer.clone()
        for direction, a, b in inner:
            around[a] += self.cost[direction, current, current[b]]
            around[b] += self.cost[direction, current[a], current]
        from scipy.optimize import linear_sum_assignment

        assigned = torch.from_numpy(linear_sum_assignment(around.numpy())[1])
        return torch.cat([swaps, assigned[None]])
