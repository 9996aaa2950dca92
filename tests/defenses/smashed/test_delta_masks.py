"""Delta masks: what spec and paper say must hold of them, and blurring against SciPy."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from scipy.ndimage import uniform_filter
from torch import Tensor, nn

from defenses.base import DefenseError
from defenses.fitting import FitContext
from defenses.smashed.delta_masks import MODES, DeltaMasks, box_blur, box_side, is_hot, jet_blue
from defenses.smashed.grad_cam import grad_cam

BLACK = torch.tensor([-2.1, -2.0, -1.8])
MIN = DeltaMasks(delta="min", fill="black", iterations=1, mode="scalar", threshold=MODES["scalar"])
MAX = replace(MIN, delta="max")


def pictures(count: int = 6, side: int = 20) -> Tensor:
    return torch.randn(count, 3, side, side, generator=torch.Generator().manual_seed(1))


def half(classes: int, seed: int) -> nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        net = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 100, classes))
    net[3].weight.data *= 100  # so that the maps' least and largest values are far apart
    return net


@pytest.fixture(scope="module")
def context() -> FitContext:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        client = nn.Sequential(nn.Conv2d(3, 8, 5, padding=2, stride=2), nn.ReLU())
    return FitContext(client, half(3, 1), half(2, 2), pictures(), torch.arange(6) % 3, BLACK)


def cams(context: FitContext, which: nn.Module, images: Tensor) -> Tensor:
    return grad_cam(nn.Sequential(context.client, which), images, which[1])  # type: ignore[index]


# ---- masks


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("fill", ["black", "blur"])
def test_masks_are_what_is_cold_for_the_server_and_for_min_hot_for_the_adversary(
    context: FitContext, mode: str, fill: str
):
    given: Any = {"mode": mode, "threshold": MODES[mode], "fill": fill}
    images = context.images
    hot_server = is_hot(cams(context, context.server, images), mode, MODES[mode])
    assert context.adversary is not None
    hot_adversary = is_hot(cams(context, context.adversary, images), mode, MODES[mode])
    least, largest = (replace(masks, **given).apply(images, context)[1] for masks in (MIN, MAX))
    assert torch.equal(largest, ~hot_server)
    assert torch.equal(least, ~hot_server & hot_adversary)
    assert not (least & ~largest).any()
    assert not (least & hot_server).any()
    assert 0 < least.sum() < largest.sum() < largest.numel()


@pytest.mark.parametrize("masks", [MIN, MAX, replace(MIN, fill="blur", iterations=3), replace(MAX, fill="blur")])
def test_pixels_outside_the_mask_stay_bit_for_bit(context: FitContext, masks: DeltaMasks):
    images = context.images.clone()
    changed, mask = masks.apply(images, context)
    assert torch.equal(images, context.images)
    outside = ~mask[:, None].expand_as(images)
    assert torch.equal(changed[outside], images[outside])
    assert not torch.equal(changed, images)


def test_black_is_the_value_of_a_black_pixel(context: FitContext):
    changed, mask = MAX.apply(context.images, context)
    for channel, value in enumerate(BLACK):
        assert (changed[:, channel][mask] == value).all()


def test_blackening_twice_is_blackening_once(context: FitContext):
    changed, mask = MIN.apply(context.images, context)
    assert torch.equal(MIN.filled(changed, mask, BLACK), changed)


@pytest.mark.parametrize("masks", [MIN, MAX])
def test_more_iterations_mask_more_and_look_at_the_masked_image(context: FitContext, masks: DeltaMasks):
    once, first = masks.apply(context.images, context)
    twice, both = replace(masks, iterations=2).apply(context.images, context)
    again, second = masks.apply(once, context)
    assert torch.equal(both, first | second)
    assert torch.equal(twice, again)
    assert not (first & ~both).any()
    if masks is MIN:
        assert both.sum() > first.sum(), "the second iteration found nothing new: it may look at the first image again"


def test_an_adversary_that_is_the_server_leaves_nothing_to_mask(context: FitContext):
    """Where both look the same way, utility has priority."""
    same = replace(context, adversary=context.server)
    changed, mask = MIN.apply(context.images, same)
    assert not mask.any()
    assert torch.equal(changed, context.images)


def test_a_threshold_of_one_leaves_nothing_hot(context: FitContext):
    for mode in ("scalar", "percentile"):
        least, largest = (replace(m, mode=mode, threshold=1.0).apply(context.images, context)[1] for m in (MIN, MAX))
        assert not least.any()
        assert largest.all()


def test_min_needs_an_adversary_and_max_does_not(context: FitContext):
    alone = replace(context, adversary=None)
    with pytest.raises(DefenseError, match="the context has none; allowed: a context with one, or delta='max'"):
        MIN.apply(context.images, alone)
    assert torch.equal(MAX.apply(context.images, alone)[1], MAX.apply(context.images, context)[1])


# ---- hot and cold


def test_the_scalar_threshold_is_where_blue_falls_below_99_percent():
    values = torch.linspace(0, 1, 100_001, dtype=torch.float64)
    blue = jet_blue(values)
    assert float(values[(blue >= 0.99)].max()) == pytest.approx(MODES["scalar"], abs=2e-5)
    assert float(values[(blue >= 0.99)].min()) == pytest.approx(0.1225, abs=2e-5)
    warm = values > 0.25
    differ = is_hot(values[warm], "blue_literal", 0.99) != is_hot(values[warm], "scalar", MODES["scalar"])
    assert int(differ.sum()) <= 1
    assert is_hot(values[:1], "blue_literal", 0.99).all(), "word for word, the coldest pixel is hot"


def test_blue_rises_stays_and_falls_in_quarters():
    values = torch.tensor([0.0, 0.0625, 0.125, 0.25, 0.375, 0.5, 0.625, 0.8, 1.0])
    torch.testing.assert_close(jet_blue(values), torch.tensor([0.5, 0.75, 1.0, 1.0, 1.0, 0.5, 0.0, 0.0, 0.0]))


def test_a_percentile_counts_pixels_of_each_image_alone():
    generator = torch.Generator().manual_seed(0)
    values = torch.rand(3, 20, 20, generator=generator) * torch.tensor([1.0, 0.1, 0.0])[:, None, None]
    hot = is_hot(values, "percentile", 0.99)
    assert hot.sum((1, 2)).tolist() == [4, 4, 0]  # 1 % of 400; of an empty map nothing
    assert values[0][hot[0]].min() > values[0][~hot[0]].max()


# ---- blurring


@pytest.mark.parametrize("shape", [(28, 28), (50, 35), (224, 224), (11, 12)])
def test_blurring_is_scipys_box_with_mirrored_borders(shape: tuple[int, int]):
    images = torch.randn(2, 2, *shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    expected = uniform_filter(images.numpy(), (0, 0, box_side(*shape), box_side(*shape)), mode="mirror")
    torch.testing.assert_close(box_blur(images), torch.from_numpy(expected), rtol=1e-9, atol=1e-9)


def test_the_box_is_40_at_224_and_scales():
    assert [box_side(side, side) for side in (224, 112, 56, 32, 4)] == [40, 20, 10, 6, 2]


def test_blurring_leaves_an_even_image():
    images = torch.full((1, 3, 30, 40), 0.3, dtype=torch.float64)
    torch.testing.assert_close(box_blur(images), images)
