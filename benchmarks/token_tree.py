"""A jigsaw puzzle of decoded tokens, solved by the borders of their patches. Imported by ``split_tokens.py``.

``TokenJigsaw`` learns which tokens are neighbours, and its mean field does not find the arrangement of 196. This solver learns only
the affine map from a token to its pixels. It joins patches, those with the most distinct common border first, and grows a tree.
Source: Gallagher, "Jigsaw Puzzles with Pieces of Unknown Orientation", CVPR 2012 (Mahalanobis gradient compatibility, constrained
tree).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from attacks.base import Knowledge
from attacks.guesses import Reconstruction
from attacks.sender import Sender
from attacks.smashed.base import SmashedAttack, SmashedData
from attacks.smashed.tokens.positions import from_patches, place, to_patches

LEVELS = 255
TRIED = 40
"""Joints that are tried, in multiples of the number of patches."""
Cell = tuple[int, int]
SIDES = ((0, 1, 0), (1, 0, 1))
"""Row and column of the right and of the lower neighbour, and its number in the costs."""


def decoded(sender: Sender, public: Tensor, received: Tensor, stream: torch.Generator) -> Tensor:
    """Patches (B, N, P) of received tokens (B, N, D), by least squares on tokens of the server's images (M, C, H, W)."""
    sent, order = sender.send_with_order(public, stream)
    pixels = to_patches(public, sender.edge.patch_size).flatten(0, 1)[order.flatten()].double()
    tokens = sent.flatten(0, 1).double()
    mean, base = tokens.mean(0), pixels.mean(0)
    gram = (tokens - mean).T @ (tokens - mean)
    gram = gram + 1e-6 * gram.diagonal().mean() * torch.eye(len(gram), dtype=gram.dtype)
    weight = torch.linalg.solve(gram, (tokens - mean).T @ (pixels - base))
    return ((received.double() - mean) @ weight + base).float().clamp(0, 1)


def border_costs(patches: Tensor, size: int) -> Tensor:
    """How badly t fits to the right of s (0) and below s (1): patches (N, 3 * size^2) -> (2, N, N).

    The step across the border is compared with the distribution of the steps on either side of it.
    """
    cells = patches.view(len(patches), 3, size, size).double() * LEVELS
    costs = []
    for turned in (cells, cells.mT):
        here = _one_way(turned[..., -1], turned[..., -2], turned[..., 0])
        back = _one_way(turned[..., 0], turned[..., 1], turned[..., -1]).T
        costs.append((here + back).clamp_min(0).sqrt().fill_diagonal_(1e9))
    return torch.stack(costs)


def _one_way(last: Tensor, before: Tensor, first: Tensor) -> Tensor:
    steps = (last - before).transpose(1, 2)  # (N, size, 3)
    eye = torch.eye(3, dtype=steps.dtype)
    # Small steps that make the covariance of a flat border regular.
    dummies = torch.cat([eye, -eye, torch.zeros(1, 3, dtype=steps.dtype)]).expand(len(steps), -1, -1)
    centred = torch.cat([steps, dummies], 1)
    centred = centred - centred.mean(1, keepdim=True)
    inverse = torch.linalg.inv(centred.mT @ centred / (centred.shape[1] - 1) + 1e-3 * eye)
    across = (first[None] - last[:, None]).transpose(2, 3) - steps.mean(1)[:, None, None]
    return torch.einsum("ijkc,icd,ijkd->ij", across, inverse, across)


def tree_positions(costs: Tensor, grid: int) -> Tensor:
    """The position (N,) of every patch of one image in a square grid, from ``border_costs``."""
    count = costs.shape[1]
    second = torch.minimum(
        costs.topk(2, 2, largest=False).values[..., 1:], costs.topk(2, 1, largest=False).values[:, 1:]
    )
    ratios = costs / second.clamp_min(1e-6)
    parts, part_of = [{one: (0, 0)} for one in range(count)], list(range(count))
    for flat in ratios.flatten().argsort()[: TRIED * count].tolist():
        side, (one, other) = flat // count**2, divmod(flat % count**2, count)
        a, b = part_of[one], part_of[other]
        joined = None if a == b else _joined(parts[a], parts[b], one, other, SIDES[side], grid)
        if joined is not None:
            for moved in parts[b]:
                part_of[moved] = a
            parts[a], parts[b] = joined, {}
    board = _filled(max(parts, key=len), ratios.tolist(), grid)
    positions = torch.empty(count, dtype=torch.int64)
    for (row, column), patch in board.items():
        positions[patch] = row * grid + column
    return positions


def _joined(
    a: dict[int, Cell], b: dict[int, Cell], one: int, other: int, side: tuple[int, int, int], grid: int
) -> dict[int, Cell] | None:
    """Both parts with ``other`` beside ``one``, or None where they overlap or exceed the grid."""
    down, right = (a[one][axis] + side[axis] - b[other][axis] for axis in (0, 1))
    moved = {patch: (row + down, column + right) for patch, (row, column) in b.items()}
    if set(a.values()) & set(moved.values()):
        return None
    whole = a | moved
    spans = (max(axis) - min(axis) for axis in zip(*whole.values(), strict=True))
    return None if any(span >= grid for span in spans) else whole


def _filled(part: dict[int, Cell], ratios: list[list[list[float]]], grid: int) -> dict[Cell, int]:
    """The largest part in the upper left corner, and the other patches where they fit best, most neighbours first."""
    top, left = (min(axis) for axis in zip(*part.values(), strict=True))
    board = {(row - top, column - left): patch for patch, (row, column) in part.items()}
    free = set(range(grid**2)) - set(part)
    while free:
        beside: dict[Cell, list[tuple[int, int, bool]]] = {}
        for (row, column), patch in board.items():
            for down, right, side in SIDES:
                for sign in (1, -1):
                    cell = row + sign * down, column + sign * right
                    if cell not in board and min(cell) >= 0 and max(cell) < grid:
                        beside.setdefault(cell, []).append((side, patch, sign > 0))
        most = max(map(len, beside.values()))
        choices = (
            (sum(ratios[s][p][new] if after else ratios[s][new][p] for s, p, after in known), cell, new)
            for cell, known in beside.items()
            if len(known) == most
            for new in free
        )
        _, cell, new = min(choices)
        board[cell] = new
        free.remove(new)
    return board


def solved(patches: Tensor, size: int, shape: tuple[int, int, int]) -> tuple[Tensor, Tensor]:
    """Images (B, C, H, W) and positions (B, N) of patches (B, N, P) in unknown order."""
    grid = shape[2] // size
    positions = torch.stack([tree_positions(border_costs(one, size), grid) for one in patches])
    return from_patches(place(patches, positions), size, shape), positions


@dataclass(frozen=True, repr=False)
class TokenTree(SmashedAttack[Reconstruction]):
    """Decode the tokens of one transmission and solve each image's puzzle by the borders of patches.

    Attributes:
        learned: Set by ``fit``: what the server knows.
    """

    source: ClassVar[str] = "Gallagher, CVPR 2012"
    threat: ClassVar[str] = (
        "one transmission of smashed data; the defences' algorithm; auxiliary images like the clients'"
    )
    needs_auxiliary: ClassVar[bool] = True
    effort: ClassVar[Mapping[str, str]] = {}
    quick: ClassVar[Mapping[str, Any]] = {}

    learned: Knowledge | None = field(default=None, repr=False, compare=False)

    def fit(self, knowledge: Knowledge, generator: torch.Generator) -> Self:
        """Keep what the server knows."""
        return replace(self, learned=knowledge)

    def attack_one(self, observation: SmashedData, generator: torch.Generator) -> Reconstruction:
        """Recover the images of the first transmission."""
        images, _ = self.arranged(observation, generator)
        return Reconstruction(images, torch.full((len(images),), -1), {})

    def arranged(self, observation: SmashedData, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Images and positions, as ``solved`` gives them."""
        assert self.learned is not None
        sender, received = self.learned.require_sender(), observation.features[0][: observation.num_targets]
        patches = decoded(sender, self.learned.auxiliary.images, received, generator)
        return solved(patches, sender.edge.patch_size, observation.input_shape)
