from __future__ import annotations

import pytest
import torch

from attacks.image_measures import mse
from attacks.observations import AttackError
from attacks.smashed.block_inversion import PatchPrior, decoded, doubled, fixed_point
from attacks.smashed.tokens.positions import to_patches
from clients.models.split.split_models import SplitShape, build_split_model
from defenses.smashed.patch_shuffle import PatchShuffle
from tests.attacks.smashed_wire import PATCH, SHAPE, Known, observe, seeded
from tests.attacks.wire import pictures


def shuffled_patches(clean, orders):
    return to_patches(clean, PATCH).flatten(0, 1)[orders[0, : len(clean)]]


def test_the_tokens_before_a_known_block_are_found_in_any_order():
    observation, clean, orders = observe(PatchShuffle(), targets=4)
    patches, numbers = decoded(observation.edge, SHAPE, Known, observation.features[0, :4], 0.0, 20)
    assert (patches - shuffled_patches(clean, orders)).abs().max() < 1e-4
    assert numbers["exact"] == 1
    assert numbers["block_residual"] < 1e-5


def test_blocks_that_add_more_than_a_token_holds_are_inverted_by_the_search():
    observation, clean, orders = observe(PatchShuffle(), targets=1)
    edge = doubled(observation.edge).float()
    with torch.no_grad():
        for weights in edge.blocks.parameters():
            if weights.dim() == 2:
                weights *= 12
        tokens = edge.embed((shuffled_images(clean, orders) - Known.mean[0]) / Known.std[0])
        received = edge.encode(tokens)
    assert fixed_point(doubled(edge).encode, received.double(), 40)[1] > 1e-3
    patches, numbers = decoded(edge, SHAPE, Known, received, 0.0, 60)
    assert numbers["exact"] == 0
    truth = shuffled_patches(clean, orders)
    assert (patches - truth).square().mean().sqrt() < 0.02
    assert edge.blocks[0].mlp.fc1.weight.grad is None


def shuffled_images(clean, orders):
    from attacks.smashed.tokens.positions import from_patches

    return from_patches(shuffled_patches(clean, orders), PATCH, SHAPE)


def test_short_tokens_give_smooth_patches():
    shape = SplitShape(PATCH, 8, 2, 2, 1)
    edge, _ = build_split_model("vit", num_classes=5, input_shape=SHAPE, shape=shape, seed=0)
    edge.eval().requires_grad_(False)
    clean = pictures(6, seed=90)
    received = edge((clean - Known.mean[0]) / Known.std[0])
    patches, numbers = decoded(edge, SHAPE, Known, received, 0.0, 20)
    truth = to_patches(clean, PATCH)
    assert numbers["exact"] == 1, "8 numbers of a token are found, though not the 16 of its patch"
    assert mse(patches, truth).mean() < 0.5 * truth.var()


def test_a_fixed_point_is_as_exact_as_the_numbers_and_separate_for_each_image():
    matrix = torch.eye(6, dtype=torch.float64) + 0.3 * torch.randn(6, 6, generator=seeded(1), dtype=torch.float64)
    tokens = torch.randn(3, 2, 6, generator=seeded(2), dtype=torch.float64)
    found, residual = fixed_point(lambda x: x @ matrix, tokens @ matrix, 60)
    assert (found - tokens).abs().max() < 1e-6
    assert residual.shape == (3,)
    alone, _ = fixed_point(lambda x: x @ matrix, tokens[:1] @ matrix, 60)
    assert (alone - found[:1]).abs().max() < 1e-6
    _, nothing = fixed_point(lambda x: x * float("inf"), tokens, 5)
    assert (nothing > 0.5).all()


def test_the_prior_prefers_smooth_patches():
    observation, _, _ = observe(PatchShuffle())
    prior = PatchPrior.of(doubled(observation.edge), SHAPE, Known)
    drawn = 0.5 + torch.randn(4000, PATCH**2, generator=seeded(3), dtype=torch.float64) @ prior.root
    beside, apart = ((drawn[:, 0] - drawn[:, at]).square().mean() for at in (1, PATCH**2 - 1))
    assert beside < 0.3 * apart


def test_overlapping_tokens_are_refused():
    shape = SplitShape(PATCH, 32, 2, 2, 1)
    edge, _ = build_split_model("t2t", num_classes=5, input_shape=SHAPE, shape=shape, seed=0)
    with pytest.raises(AttackError, match="not an affine map of single patches"):
        decoded(edge.eval(), SHAPE, Known, torch.zeros(1, 9, 32), 0.0, 5)
