"""Planes whose pixels are exchanged inside windows, many windows at once, and the order of a window that fits its neighbours."""

import functools
from collections import defaultdict
from collections.abc import Sequence
from itertools import permutations
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from attacks.assignment import assigned
from defenses.images.visual_mixer_windows import Level

FEW = 4
"""Windows of at most so many pixels are solved by trying every order."""
MOST_COSTS = 2**22
"""Costs of pixels at positions that are held at once."""


class Windows(NamedTuple):
    """M windows, of which no two share an edge.

    Attributes:
        pixels: (M, n) int64, counted through all planes; those of windows with fewer than n are padded.
        numbers: (M,) int64, counted through all windows.
        sides: (M, 2) int64: height and width.
        held: Pixels of each window, (M,) int64.
    """

    pixels: Tensor
    numbers: Tensor
    sides: Tensor
    held: Tensor


def windows_of(
    pieces: Sequence[list[Level]], copies: int, height: int, width: int, *, corners: bool = False
) -> tuple[list[Windows], list[int]]:
    """The windows of more than one pixel, of all images with ``copies`` planes each, in groups; and how many each piece has.

    With ``corners`` windows of a group may meet at a corner, so that groups are half as many.
    """
    groups = defaultdict[tuple[int, ...], list[tuple[Tensor, int, Sequence[int]]]](list)
    position = torch.arange(height * width).view(height, width)
    counts, total, plane = [], 0, 0
    for levels in pieces:
        before = total
        for image in range(len(levels[0][1])):
            for size, active in levels:
                for row, column in active[image].nonzero().tolist():
                    inside = position[row * size : (row + 1) * size, column * size : (column + 1) * size]
                    for copy in range(plane, plane + copies if inside.numel() > 1 else plane):
                        pixels = copy * height * width + inside.flatten()
                        place = ((row + column) % 2,) if corners else (row % 2, column % 2)
                        groups[size, *place].append((pixels, total, inside.shape))
                        total += 1
            plane += copies
        counts.append(total - before)
    columns = [zip(*groups[colour], strict=True) for colour in sorted(groups)]
    return [
        Windows(
            pad_sequence(list(pixels), batch_first=True), torch.tensor(numbers), own := torch.tensor(sides), own.prod(1)
        )
        for pixels, numbers, sides in columns
    ], counts


class Planes:
    """Planes (P, H, W) whose pixels have one number each, counted through, so that a step is a few gathers from one table.

    Attributes:
        values: (P * H * W,), of the pixels.
        neighbours: (P * H * W, 4): left, right, above and below. Beyond the border a pixel is its own neighbour.
    """

    def __init__(self, planes: Tensor) -> None:
        self.shape = planes.shape
        self.values = planes.flatten().clone()
        count, height, width = planes.shape
        position = torch.arange(height * width)
        inside = _within(position, height, width)
        beside = torch.stack(
            [position + step * own for step, own in zip((-1, 1, -width, width), inside.T, strict=True)], 1
        )
        first = torch.arange(count)[:, None, None] * len(position)
        self.neighbours = (first + beside).flatten(0, 1)

    @property
    def planes(self) -> Tensor:
        """The planes as they are now, (P, H, W)."""
        return self.values.view(self.shape)


def _within(position: Tensor, height: int, width: int) -> Tensor:
    """Whether a position (n,) in a grid has a neighbour on the left, right, above and below, (n, 4)."""
    row, column = position // width, position % width
    return torch.stack([column > 0, column < width - 1, row > 0, row < height - 1], 1)


def place_pixels(planes: Tensor, groups: Sequence[Windows], sweeps: int) -> Tensor:
    """Reorder the pixels of every window, lowering the differences of neighbours until no window finds a better order.

    The first sweep looks at neighbours in the window only, since the others are still shuffled. A window of up to 4 pixels tries
    every order. A larger one tries the best swap of two, and the optimal assignment of its pixels to positions where the cost of a
    pixel at a position is that beside what lies around it now. Planes are (P, H, W); ``sweeps`` are the most visits of a window.
    """
    state, step = Planes(planes), 0
    moved = torch.zeros(len(state.values), dtype=torch.int64)
    # Windows of one shape: pixels (M, n), width, and the step of the last visit that found no better order, (M,).
    alike = [
        (group.pixels[which, : height * width], width, torch.full((int(which.sum()),), -1))
        for group in groups
        for height, width in torch.unique(group.sides, dim=0).tolist()
        for which in [(group.sides == torch.tensor([height, width])).all(1)]
    ]
    for sweep in range(sweeps):
        before = step
        for pixels, width, settled in alike:
            stale = (moved[state.neighbours[pixels]].amax((1, 2)) > settled).nonzero().flatten()
            for part in torch.split(stale, max(1, MOST_COSTS // pixels.shape[1] ** 2)) if len(stale) else ():
                step += 1
                better, values = _improved(state, pixels[part], width, inside_only=sweep == 0)
                changed = pixels[part[better]]
                state.values[changed], moved[changed] = values, step
                if sweep:
                    settled[part[~better]] = step
        if sweep and not bool((moved > before).any()):
            break
    return state.planes


def _improved(state: Planes, pixels: Tensor, width: int, *, inside_only: bool) -> tuple[Tensor, Tensor]:
    """Which windows (M, n) a better order was found for, (M,) bool, and the values of their pixels in this order."""
    count, size = pixels.shape
    here, beside = state.values[pixels], state.neighbours[pixels]
    position = torch.arange(size)
    inside = _within(position, size // width, width)
    a = torch.cat([position[inside[:, 1]], position[inside[:, 3]]])
    b = torch.cat([position[inside[:, 1]] + 1, position[inside[:, 3]] + width])
    outer, inner = torch.zeros(2, count, size, size)
    for side, neighbour in enumerate(beside.unbind(2)):
        cost = (here[:, None] - state.values[neighbour][:, :, None]).abs()  # of each pixel, at each position
        inner += cost * inside[:, side, None]
        outer += cost * (~inside[:, side] & (neighbour != pixels))[:, :, None] * (not inside_only)
    if size <= FEW:
        orders = _all_orders(size).expand(count, -1, -1)
    else:
        swapped = position.repeat(count, 1)
        p, q = _best_swap(outer + inner, here, a, b)
        swapped.scatter_(1, p, q).scatter_(1, q, p)
        orders = torch.stack([position.expand(count, -1), swapped, assigned(outer + inner)], 1)
    held = here[:, None].expand(orders.shape).gather(2, orders)
    costs = outer.gather(2, orders.mT).sum(1) + (held[..., a] - held[..., b]).abs().sum(2)
    best = costs.argmin(1)
    better = costs.amin(1) < costs[:, 0] - 1e-6  # the first order is the present one
    return better, held[better, best[better]]


def _best_swap(around: Tensor, here: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """The two positions (M, 1) whose swap adds least to the cost; ``around``: cost of each pixel at each position now."""
    stay = around.diagonal(dim1=1, dim2=2)
    added = around + around.mT - stay[:, :, None] - stay[:, None]
    # Two neighbours that are swapped stay as far apart; in ``around`` each met the other where it stands no more.
    apart = 2 * (here[:, a] - here[:, b]).abs()
    added[:, a, b] += apart
    added[:, b, a] += apart
    least = added.flatten(1).argmin(1, keepdim=True)
    return least // around.shape[1], least % around.shape[1]


@functools.cache
def _all_orders(k: int) -> Tensor:
    """Every order of k pixels, (k!, k), the present one first; read only."""
    return torch.tensor(list(permutations(range(k))))
