"""The released variant of VisualMixer: whole blocks move, uniformly, inside their window only."""

import itertools

import pytest
import torch
from scipy.stats import chisquare

from defenses.images.block_shuffle import BlockShuffle, block_shuffle
from defenses.images.visual_mixer import shuffle_windows
from defenses.images.visual_mixer_windows import partition
from tests.defenses.images.visual_mixer_reference import random_images


@pytest.mark.numeric
def test_whole_blocks_move_inside_their_window_uniformly_channels_and_images_apart() -> None:
    blocks = torch.arange(4).view(2, 2).repeat(20, 20)  # number of the block inside its 8 x 8 window
    images = (blocks * 100).repeat_interleave(4, 0).repeat_interleave(4, 1) + torch.arange(16).view(4, 4).repeat(40, 40)
    mixed = block_shuffle(images.float().expand(20, 3, -1, -1), 8, 2, torch.Generator().manual_seed(0))
    tiles = mixed.unfold(2, 4, 4).unfold(3, 4, 4)
    assert (tiles % 100 == torch.arange(16).view(4, 4)).all()
    orders = (tiles[..., 0, 0] // 100).unfold(2, 2, 2).unfold(3, 2, 2).reshape(-1, 4).int().tolist()
    codes = {order: i for i, order in enumerate(itertools.permutations(range(4)))}
    observed = torch.bincount(torch.tensor([codes[tuple(row)] for row in orders]), minlength=24)
    assert chisquare(observed.numpy()).pvalue > 1e-4
    for one, other in itertools.combinations(mixed[:2].flatten(0, 1), 2):
        assert not torch.equal(one, other)


def test_limits_and_edges() -> None:
    images, generator = random_images(2, 3, 30, 21), torch.Generator().manual_seed(0)
    assert torch.equal(block_shuffle(images, 8, 1, generator), images)
    assert torch.equal(block_shuffle(images[..., :3, :3], 8, 2, generator), images[..., :3, :3])
    # Blocks of one pixel are Algorithm 1 with one window size.
    same = block_shuffle(images, 8, 8, torch.Generator().manual_seed(3))
    assert torch.equal(same, shuffle_windows(images, partition(images, [8]), torch.Generator().manual_seed(3)))
    # 30 x 21 holds 7 x 5 blocks of 4; the rest of 2 rows and 1 column stays.
    mixed = block_shuffle(images, 8, 2, generator)
    assert torch.equal(mixed[..., 28:, :], images[..., 28:, :])
    assert torch.equal(mixed[..., 20:], images[..., 20:])
    assert torch.equal(mixed.flatten().sort().values, images.flatten().sort().values)
    assert not torch.equal(mixed[..., :28, :20], images[..., :28, :20])
    with pytest.raises(ValueError, match="window is 9; allowed: a positive multiple of blocks, 2"):
        BlockShuffle(window=9)
