"""Undoing shuffles inside windows without a learned prior: by annealing of swaps (shredder) or matching of pixels (jigsaw)."""

from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor

from attacks.image_measures import total_variation
from attacks.observations import AttackError
from attacks.refinement.jigsaw import Planes, Windows, place_pixels, windows_of
from attacks.refinement.unshuffle import Piece, Unshuffle
from defenses.checks import Steps, algorithm
from defenses.tensors import Numbers

TEMPERATURE = 0.2
"""The first T, in units of images in [0, 1]."""
MOST_PIECES = 1024
"""Pixels of a window that ``Jigsaw`` places: the time of an assignment grows with their cube."""


class Rearrangement(Unshuffle):
    """Base of attacks that exchange pixels inside windows to lower total variation, also across windows.

    Every window keeps its values. An image whose total variation has grown in the end is returned unchanged.
    """

    corners: ClassVar[bool] = False
    """Whether windows that meet at a corner are rearranged together; see ``windows_of``."""

    def _solve(self, pieces: Sequence[Piece]) -> list[tuple[Tensor, Numbers]]:
        channels, height, width = pieces[0].images.shape[1:]
        planes = [piece.images.reshape(-1, height, width) for piece in pieces]
        windows = [piece.windows for piece in pieces]
        groups, counts = windows_of(windows, channels, height, width, corners=self.corners)
        moved, solved = self._rearranged(torch.cat(planes), groups, counts, [p.generator for p in pieces]), []
        for before, after in zip(planes, torch.split(moved, [len(own) for own in planes]), strict=True):
            better = total_variation(after[:, None]) < total_variation(before[:, None])
            result = torch.where(better[:, None, None], after, before).view(-1, channels, height, width)
            ends = (before.view_as(result), result)
            names = ("total_variation_before", "total_variation")
            solved.append((result, {n: float(total_variation(end).mean()) for n, end in zip(names, ends, strict=True)}))
        return solved

    def _rearranged(
        self, planes: Tensor, groups: Sequence[Windows], counts: Sequence[int], generators: Sequence[torch.Generator]
    ) -> Tensor:
        """The planes (P, H, W) of all pieces with exchanged pixels; a piece has ``counts`` windows and its own generator."""
        raise NotImplementedError


@algorithm
class Shredder(Rearrangement, effort={"sweeps": "iterations"}, quick={"sweeps": 5}):
    """Undo pixel shuffles in windows by simulated annealing of swaps, which minimises total variation, also across windows.

    One step proposes a swap in every other window of one size (no two of them share an edge, so that their costs do not interact)
    of every image and channel at once. A swap that adds d to the total variation is kept with probability exp(-d / T); T falls
    linearly to 0. Images of least variation are flatter than the originals: edges and lines come out as blobs. Li et al. name no
    algorithm; annealing is our choice.

    Attributes:
        sweeps: Proposals per window.
    """

    source = "the image shredder of Li et al., VisualMixer, NDSS 2024, Sec. V; annealed total variation"

    sweeps: Steps = 1000

    corners = True

    def card(self) -> dict[str, int | str]:
        """Proposals for each window."""
        return {"iterations": f"{self.sweeps} sweeps"}

    def _rearranged(
        self, planes: Tensor, groups: Sequence[Windows], counts: Sequence[int], generators: Sequence[torch.Generator]
    ) -> Tensor:
        state = Planes(planes)
        for sweep in range(self.sweeps):
            temperature = TEMPERATURE * (1 - (sweep + 1) / self.sweeps)
            draws = torch.cat([torch.rand(3, n, generator=g) for n, g in zip(counts, generators, strict=True)], 1)
            for group in groups:
                anneal(state, group, draws, temperature)
        return state.planes


def anneal(state: Planes, group: Windows, draws: Tensor, temperature: float) -> None:
    """Propose one swap in each window of a group, by draws (3, number of all windows) from [0, 1)."""
    own, count = draws[:, group.numbers], group.held
    first = (own[0] * count).long()
    second = (first + 1 + (own[1] * (count - 1)).long()) % count
    pair = group.pixels.gather(1, torch.stack([first, second], 1))
    here, beside = state.values[pair], state.neighbours[pair]
    around = state.values[beside]
    before = (around - here.unsqueeze(2)).abs().sum(dim=(1, 2))
    after = (around - here.flip(1).unsqueeze(2)).abs().sum(dim=(1, 2))
    # Two neighbours that are swapped stay as far apart; above, each met the other where it stands no more.
    touching = (beside[:, 0] == pair[:, 1:]).any(1)
    added = after - before + 2 * touching * (here[:, 0] - here[:, 1]).abs()
    chance = torch.exp(-added / temperature) if temperature > 0 else (added <= 0).float()
    swapped = (own[2] < chance)[:, None]
    state.values[pair] = torch.where(swapped, here.flip(1), here)


@algorithm
class Jigsaw(Rearrangement, effort={"sweeps": "iterations"}, quick={"sweeps": 5}):
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

    def _rearranged(
        self, planes: Tensor, groups: Sequence[Windows], counts: Sequence[int], generators: Sequence[torch.Generator]
    ) -> Tensor:
        if (most := max((int(group.held.max()) for group in groups), default=0)) > MOST_PIECES:
            raise AttackError(
                f"a window has {most:,} pieces; {type(self).__name__} takes at most {MOST_PIECES:,}, as its time grows with "
                "their cube: use Shredder"
            )
        return place_pixels(planes, groups, self.sweeps)
