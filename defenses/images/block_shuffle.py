"""The block shuffle of VisualMixer's released data-set generator, which differs from its paper."""

from __future__ import annotations

import torch
from torch import Tensor

from defenses.base import Batch, InputDefense
from defenses.checks import MOST_SIDE, algorithm, is_whole, require, whole_field
from defenses.images.visual_mixer import shuffle_windows


@algorithm
class BlockShuffle(InputDefense):
    """Permute square blocks of pixels inside fixed windows, as VisualMixer's released data-set generator does.

    The generator differs from Algorithm 1: its window does not depend on VFE (both branches permute 2 x 2 blocks), and the
    pixels inside a block stay together. The published accuracies may come from this generator.

    Attributes:
        window: Side of a window in pixels, a multiple of ``blocks``.
        blocks: Blocks per side of a window.
    """

    always_shown = ("window", "blocks")
    source = "Released code of Li et al., VisualMixer, NDSS 2024 (data-set generator)"
    at_inference = True
    resamples = False
    adaptive_attacks = ("LearnedRestorer", "WindowMean", "Shredder", "Jigsaw")

    window: int = 8
    blocks: int = whole_field(2, 1, MOST_SIDE)

    def __post_init__(self) -> None:
        super().__post_init__()
        fits = is_whole(self.window) and 1 <= self.window <= MOST_SIDE and self.window % self.blocks == 0
        require(fits, self, "window", f"a positive multiple of blocks, {self.blocks}, at most {MOST_SIDE}")

    def protect_batch(self, batch: Batch, generator: torch.Generator) -> Batch:
        """Permute the blocks; targets are unchanged."""
        return Batch(block_shuffle(batch.images, self.window, self.blocks, generator), batch.targets)


def block_shuffle(images: Tensor, window: int, n: int, generator: torch.Generator) -> Tensor:
    """Permute the n x n blocks of every window of (B, C, H, W), channel by channel; pixels inside a block keep their places.

    Edge windows hold fewer blocks; a block cut by the edge stays as it is.
    """
    side = window // n
    rows, columns = (length // side for length in images.shape[-2:])
    if rows * columns == 0:
        return images.clone()
    every = torch.ones(len(images), -(-rows // n), -(-columns // n), dtype=torch.bool)
    numbers = torch.arange(rows * columns).view(rows, columns).expand(*images.shape[:2], -1, -1)
    source = shuffle_windows(numbers, [(n, every)], generator).flatten(2)[..., None, None].to(images.device)
    out = images.clone()
    tiles = out.unfold(2, side, side).unfold(3, side, side)
    blocks = tiles.flatten(2, 3)
    tiles.copy_(blocks.gather(2, source.expand_as(blocks)).view_as(tiles))
    return out
