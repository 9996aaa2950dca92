"""Undoing shuffles inside windows without a learned prior: by annealing of swaps (shredder) or matching of pixels (jigsaw)."""

from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from attacks.image_measures import total_variation
from attacks.observations import AttackError
from attacks.refinement.jigsaw import place_pixels
from attacks.refinement.unshuffle import Piece, Unshuffle
from defenses.checks import Steps, algorithm
from defenses.images.visual_mixer_windows import Level
from defenses.tensors import ImageShape, Numbers

TEMPERATURE = 0.2
"""The first T, in units of images in [0, 1]."""
MOST_PIECES = 1024
"""Pieces of a window that ``Jigsaw`` places: a whole image of 32x32 pixels takes it some ten seconds a channel."""


@algorithm
class Shredder(Unshuffle, effort={"sweeps": "iterations"}, quick={"sweeps": 5}):
    """Undo pixel shuffles in windows by simulated annealing of swaps, which minimises total variation, also across windows.

    One step proposes a swap in every fourth window (no two of them touch, so that their costs do not interact) of every image and
    channel at once. A swap that adds d to the total variation is kept with probability exp(-d / T); T falls linearly to 0. Every
    window keeps its values. An image whose total variation has grown in the end is returned unchanged. Images of least variation
    are flatter than the originals: edges and lines come out as blobs. Li et al. name no algorithm; annealing is our choice.

    Attributes:
        sweeps: Proposals per window.
    """

    source = "the image shredder of Li et al., VisualMixer, NDSS 2024, Sec. V; annealed total variation"

    sweeps: Steps = 1000

    def card(self) -> dict[str, int | str]:
        """Proposals for each window."""
        return {"iterations": f"{self.sweeps} sweeps"}

    def _solve(self, pieces: Sequence[Piece]) -> list[tuple[Tensor, Numbers]]:
        channels, height, width = pieces[0].images.shape[1:]
        planes = [piece.images.reshape(-1, height, width) for piece in pieces]
        state = _Annealer(torch.cat(planes))
        groups, proposals = _swap_groups([piece.windows for piece in pieces], channels, height, width)
        for sweep in range(self.sweeps):
            temperature = TEMPERATURE * (1 - (sweep + 1) / self.sweeps)
            drawn = [torch.rand(3, n, generator=p.generator) for n, p in zip(proposals, pieces, strict=True)]
            draws = torch.cat(drawn, 1)
            for group in groups:
                state.step(group, draws, temperature)
        solved = []
        for before, after in zip(planes, torch.split(state.planes, [len(own) for own in planes]), strict=True):
            better = total_variation(after[:, None]) < total_variation(before[:, None])
            result = torch.where(better[:, None, None], after, before).view(-1, channels, height, width)
            ends = (before.view_as(result), result)
            names = ("total_variation_before", "total_variation")
            solved.append((result, {n: float(total_variation(end).mean()) for n, end in zip(names, ends, strict=True)}))
        return solved


@algorithm
class Jigsaw(Unshuffle, effort={"sweeps": "iterations"}, quick={"sweeps": 5}):
    """Undo pixel shuffles in windows by placing pixels where they fit their neighbours best; see ``place_pixels``.

    Pixels have no edges and carry little information (use ``Shredder``). Placement by optimal assignment is ours, because windows
    confine every piece.

    A window of more than ``MOST_PIECES`` raises ``AttackError``.

    Attributes:
        sweeps: Most visits of each window.
    """

    source = "Pomeranz et al., greedy square jigsaw puzzle solver, CVPR 2011, Eq. 3, of pieces of one pixel"

    sweeps: Steps = 10

    def card(self) -> dict[str, int | str]:
        """Visits of each window."""
        return {"iterations": f"at most {self.sweeps} sweeps"}

    def _solve(self, pieces: Sequence[Piece]) -> list[tuple[Tensor, Numbers]]:
        return [self._placed(images, windows) for images, windows, _ in pieces]

    def _placed(self, images: Tensor, windows: list[Level]) -> tuple[Tensor, Numbers]:
        result, costs = images.clone(), []
        for i, image in enumerate(result):
            members = _members(windows, i, *images.shape[-2:])
            if (most := max(map(len, members), default=0)) > MOST_PIECES:
                raise AttackError(
                    f"a window has {most:,} pieces; {type(self).__name__} takes at most {MOST_PIECES:,}, as its time grows "
                    "with their cube: use Shredder"
                )
            costs += [place_pixels(plane, members, self.sweeps) for plane in image]
        before, after = torch.tensor(costs).mean(0).tolist()
        return result, {"seam_cost_before": before, "seam_cost": after}


class _Group(NamedTuple):
    """M windows of which no two touch: pixels (M, n) counted through all planes, how many of them are held (M,), draws (M,)."""

    pixels: Tensor
    held: Tensor
    draws: Tensor


class _Annealer:
    """Planes (P, H, W) whose pixels are swapped.

    Pixels of all planes have one number each, counted through, so that a step is a few gathers from one table.
    """

    def __init__(self, planes: Tensor) -> None:
        self.shape = planes.shape
        self.values = planes.flatten().clone()
        count, height, width = planes.shape
        position = torch.arange(height * width)
        row, column = position // width, position % width
        valid = (column > 0, column < width - 1, row > 0, row < height - 1)
        # Beyond the border a pixel is its own neighbour, which costs nothing.
        beside = torch.stack([position + s * v for s, v in zip((-1, 1, -width, width), valid, strict=True)], 1)
        first = torch.arange(count)[:, None, None] * len(position)
        self.neighbours = (first + beside).flatten(0, 1)

    @property
    def planes(self) -> Tensor:
        """The planes as they are now, (P, H, W)."""
        return self.values.view(self.shape)

    def step(self, group: _Group, sweep: Tensor, temperature: float) -> None:
        """Proposes one swap in each window of a group, by draws (3, number of all windows) from [0, 1)."""
        pixels, count, draws = group.pixels, group.held, sweep[:, group.draws]
        first = (draws[0] * count).long()
        second = (first + 1 + (draws[1] * (count - 1)).long()) % count
        pair = pixels.gather(1, torch.stack([first, second], 1))
        here = self.values[pair]
        beside = self.neighbours[pair]
        around = self.values[beside]
        before = (around - here.unsqueeze(2)).abs().sum(dim=(1, 2))
        after = (around - here.flip(1).unsqueeze(2)).abs().sum(dim=(1, 2))
        # Two neighbours that are swapped stay as far apart; above, each met the other where it stands no more.
        touching = (beside[:, 0] == pair[:, 1:]).any(1)
        added = after - before + 2 * touching * (here[:, 0] - here[:, 1]).abs()
        chance = torch.exp(-added / temperature) if temperature > 0 else (added <= 0).float()
        swapped = (draws[2] < chance)[:, None]
        self.values[pair] = torch.where(swapped, here.flip(1), here)


def _members(levels: list[Level], image: int, height: int, width: int) -> list[Tensor]:
    """The pixels of every window of one image that holds more than one, as positions in it."""
    position = torch.arange(height * width).view(height, width)
    windows = []
    for size, active in levels:
        for row, column in active[image].nonzero().tolist():
            inside = position[row * size : (row + 1) * size, column * size : (column + 1) * size].flatten()
            windows += [inside] if len(inside) > 1 else []
    return windows


def _swap_groups(pieces: Sequence[list[Level]], copies: int, height: int, width: int) -> tuple[list[_Group], list[int]]:
    """The windows of all planes, ``copies`` an image, in groups in which no two touch, and how many windows each piece has."""
    groups: dict[ImageShape, list[tuple[Tensor, int]]] = defaultdict(list)
    counts, number, start = [], 0, 0
    for levels in pieces:
        before = number
        for image in range(len(levels[0][1])):
            for size, active in levels:
                for inside in _members([(size, active[image : image + 1])], 0, height, width):
                    corner = int(inside[0])
                    colour = (size, corner // width // size % 2, corner % width // size % 2)
                    for plane in range(start, start + copies):
                        groups[colour].append((plane * height * width + inside, number))
                        number += 1
            start += copies
        counts.append(number - before)
    padded = []
    for colour in sorted(groups):
        pixels, draws = zip(*groups[colour], strict=True)
        held = torch.tensor([len(inside) for inside in pixels])
        together = torch.nn.utils.rnn.pad_sequence(list(pixels), batch_first=True)
        padded.append(_Group(together, held, torch.tensor(draws)))
    return padded, counts
