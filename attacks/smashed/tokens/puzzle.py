"""Jigsaw puzzles of patches with known pixels, of one image or of several, solved by the borders of the patches.

Sources: Gallagher, "Jigsaw Puzzles with Pieces of Unknown Orientation", CVPR 2012 (Mahalanobis gradient compatibility, constrained
tree); the exact reassignment of every second cell is ours.
"""

import torch
from torch import Tensor

from attacks.assignment import assigned
from defenses.tensors import ImageShape

LEVELS = 255
TRIED = 40
"""Joints that the tree tries, in multiples of the number of patches."""
MOST_RATIO = 2.0
"""Costs of joints count no more: patches beyond an edge of the image fit nowhere."""
MOST_FRAMES = 25
"""Places of the largest part in the frame that are tried."""
ROUNDS = 30
Cell = tuple[int, int]
SIDES = ((0, 1, 0), (1, 0, 1))
"""Row and column of the right and of the lower neighbour, and its number in the costs."""


def border_costs(patches: Tensor, size: int) -> Tensor:
    """How badly t fits to the right of s (0) and below s (1), in levels of 255, whitened: patches (N, C * size^2) -> (2, N, N).

    The step across the border is compared with the distribution of the steps on either side of it.
    """
    cells = patches.view(len(patches), -1, size, size).double() * LEVELS
    costs = []
    for turned in (cells, cells.mT):
        last, before, first, second = (turned[..., at].transpose(1, 2) for at in (-1, -2 % size, 0, 1 % size))
        both = _one_way(last, before, first) + _one_way(first, second, last).T
        costs.append(both.clamp_min(0).sqrt().fill_diagonal_(1e9))
    return torch.stack(costs)


def _one_way(last: Tensor, before: Tensor, first: Tensor) -> Tensor:
    """Squared Mahalanobis distances (N, N) of the steps from ``last`` of s to ``first`` of t, (N, size, C) each."""
    steps = last - before
    eye = torch.eye(steps.shape[2], dtype=steps.dtype, device=steps.device)
    # Small steps that make the covariance of a flat border regular.
    dummies = torch.cat([eye, -eye, torch.zeros_like(eye[:1])]).expand(len(steps), -1, -1)
    centred = torch.cat([steps, dummies], 1)
    centred = centred - centred.mean(1, keepdim=True)
    inverse = torch.linalg.inv(centred.mT @ centred / (centred.shape[1] - 1) + 1e-3 * eye)
    expected = last + steps.mean(1, keepdim=True)
    # |first - expected|^2 in the metric of s, multiplied out: products of matrices, and no array of all pairs of borders.
    pulled = expected @ inverse
    squares: Tensor = inverse.flatten(1) @ (first.mT @ first).flatten(1).T - 2 * pulled.flatten(1) @ first.flatten(1).T
    constant: Tensor = (pulled * expected).sum((1, 2))[:, None]
    return squares + constant


def ratios_of(costs: Tensor) -> Tensor:
    """Costs (2, N, N) over the second lowest of their row or column, the lower of both: below 1 where a joint is distinct."""
    across, down = (costs.topk(min(2, costs.shape[1]), axis, largest=False).values for axis in (2, 1))
    return costs / torch.minimum(across[..., -1:], down[:, -1:]).clamp_min(1e-6)


def solved(costs: Tensor, grid: tuple[int, int], images: int = 1) -> Tensor:
    """Arrange the patches of one or more images.

    Args:
        costs: (2, M, M) of pairs of M = images * rows * columns patches, from ``border_costs``.
        grid: Rows and columns of an image.
        images: Number of images whose patches these are.

    Returns:
        Boards (images, rows, columns) int64 of numbers of patches, each once; the order of the images is arbitrary.
    """
    ratios = ratios_of(costs)
    parts = sorted(joined_parts(ratios, grid), key=len, reverse=True)[:images]
    weights = ratios.clamp(max=MOST_RATIO)
    if images > 1:
        return improved(filled(torch.cat([_framed(part, grid, least=True) for part in parts]), weights), weights)
    boards = [improved(filled(start[None], weights), weights) for start in _framed(parts[0], grid)]
    return min(boards, key=lambda board: total(board, weights))


def joined_parts(ratios: Tensor, grid: tuple[int, int]) -> list[dict[int, Cell]]:
    """Parts of images, patch -> row and column: trees of the most distinct joints that neither overlap nor exceed the grid."""
    count = ratios.shape[1]
    parts, part_of = [{patch: (0, 0)} for patch in range(count)], list(range(count))
    for flat in ratios.flatten().topk(min(TRIED * count, ratios.numel()), largest=False).indices.tolist():
        side, (anchor, other) = flat // count**2, divmod(flat % count**2, count)
        a, b = part_of[anchor], part_of[other]
        joined = None if a == b else _joined(parts[a], parts[b], anchor, other, SIDES[side], grid)
        if joined is not None:
            for moved in parts[b]:
                part_of[moved] = a
            parts[a], parts[b] = joined, {}
    return [part for part in parts if part]


def _joined(
    a: dict[int, Cell], b: dict[int, Cell], anchor: int, other: int, side: ImageShape, grid: tuple[int, int]
) -> dict[int, Cell] | None:
    """Both parts with ``other`` beside ``anchor``, or None where they overlap or exceed the grid."""
    down, right = (a[anchor][axis] + side[axis] - b[other][axis] for axis in (0, 1))
    moved = {patch: (row + down, column + right) for patch, (row, column) in b.items()}
    if not set(a.values()).isdisjoint(moved.values()):
        return None
    whole = a | moved
    spans = (max(axis) - min(axis) for axis in zip(*whole.values(), strict=True))
    return None if any(span >= most for span, most in zip(spans, grid, strict=True)) else whole


def _framed(part: dict[int, Cell], grid: tuple[int, int], *, least: bool = False) -> Tensor:
    """Boards (F, rows, columns) of a part at its possible places in the frame, with -1 in free cells; one if ``least``."""
    top, left = (min(axis) for axis in zip(*part.values(), strict=True))
    height, width = (max(axis) - min(axis) + 1 for axis in zip(*part.values(), strict=True))
    places = [(down, right) for down in range(grid[0] - height + 1) for right in range(grid[1] - width + 1)]
    places = [places[len(places) // 2]] if least else places[:: -(-len(places) // MOST_FRAMES)]
    boards = torch.full((len(places), *grid), -1)
    for board, (down, right) in zip(boards, places, strict=True):
        for patch, (row, column) in part.items():
            board[row - top + down, column - left + right] = patch
    return boards


def beside(boards: Tensor, weights: Tensor, cells: Tensor, patches: Tensor) -> tuple[Tensor, Tensor]:
    """Weights (K, L) of patches (L,) in cells (K, 3) beside what the boards hold there, summed; and numbers of neighbours (K,)."""
    total = torch.zeros(len(cells), len(patches), dtype=weights.dtype, device=weights.device)
    known = torch.zeros(len(cells), dtype=torch.int64)
    padded = torch.nn.functional.pad(boards, (1, 1, 1, 1), value=-1)
    for down, right, side in SIDES:
        for sign in (1, -1):
            near = padded[cells[:, 0], cells[:, 1] + 1 + sign * down, cells[:, 2] + 1 + sign * right]
            there, who = near >= 0, near.clamp_min(0)
            added = weights[side][patches][:, who].T if sign > 0 else weights[side][who][:, patches]
            total += torch.where(there[:, None], added, 0)
            known += there
    return total, known


def filled(boards: Tensor, weights: Tensor) -> Tensor:
    """Boards (F, rows, columns) whose free cells got the other patches, at every step the cells with the most neighbours."""
    boards = boards.clone()
    while bool((boards < 0).any()):
        cells = (boards < 0).nonzero()
        used = torch.zeros(weights.shape[1], dtype=torch.bool)
        used[boards[boards >= 0]] = True
        free = (~used).nonzero().flatten()
        _, known = beside(boards, weights, cells, free[:0])
        cells = cells[known == known.max()]
        costs, _ = beside(boards, weights, cells, free)
        for cell, patch in zip(cells, assigned(costs), strict=True):
            boards[tuple(cell)] = free[patch]
    return boards


def total(boards: Tensor, weights: Tensor) -> float:
    """The sum of the weights of all joints."""
    right = weights[0][boards[:, :, :-1], boards[:, :, 1:]].sum()
    return float(right + weights[1][boards[:, :-1], boards[:, 1:]].sum())


def improved(boards: Tensor, weights: Tensor) -> Tensor:
    """Boards of a lower total: every second cell is reassigned exactly, the other cells held, in turn; and images are shifted.

    The cells of one colour of a chessboard are no neighbours, so that the cost of each depends on the other colour alone.
    """
    least = total(boards, weights)
    for _ in range(ROUNDS):
        before = least
        for colour in (0, 1):
            changed = boards.clone()
            row, column = torch.arange(boards.shape[1])[:, None], torch.arange(boards.shape[2])
            cells = ((row + column) % 2 == colour).expand_as(boards).nonzero()
            own = boards[tuple(cells.T)]
            costs, _ = beside(boards, weights, cells, own)
            changed[tuple(cells.T)] = own[assigned(costs)]
            boards, least = _better(boards, [changed], weights)
        rolls = (
            [boards.roll(step, axis) for axis in (1, 2) for step in range(1, boards.shape[axis])]
            if len(boards) == 1
            else []
        )
        boards, least = _better(boards, rolls, weights)
        if least >= before - 1e-9:
            break
    return boards


def _better(boards: Tensor, others: list[Tensor], weights: Tensor) -> tuple[Tensor, float]:
    """The boards of the lowest total, the first if none is lower by more than rounding; and its total."""
    best, least = boards, total(boards, weights)
    for other in others:
        if (cost := total(other, weights)) < least - 1e-9:
            best, least = other, cost
    return best, least
