"""Delta masks: what spec and paper say must hold of them, and blurring against SciPy."""

import itertools
from dataclasses import replace
from typing import Any

import pytest
import torch
from scipy.ndimage import uniform_filter
from torch import Tensor, nn

from defenses.base import DefenseError
from defenses.fitting import FitContext
from defenses.smashed.delta_masks import MODES, DeltaMasks, box_blur, box_side, grad_cam, is_hot, jet_blue

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


def test_masks_are_what_is_cold_for_the_server_and_for_min_hot_for_the_adversary(context: FitContext) -> None:
    images = context.images
    assert context.adversary is not None
    for mode, fill in itertools.product(MODES, ("black", "blur")):
        given: Any = {"mode": mode, "threshold": MODES[mode], "fill": fill}
        hot_server = is_hot(cams(context, context.server, images), mode, MODES[mode])
        hot_adversary = is_hot(cams(context, context.adversary, images), mode, MODES[mode])
        least, largest = (replace(masks, **given).apply(images, context)[1] for masks in (MIN, MAX))
        assert torch.equal(largest, ~hot_server)
        assert torch.equal(least, ~hot_server & hot_adversary)
        assert 0 < least.sum() < largest.sum() < largest.numel()
    for mode in ("scalar", "percentile"):  # a threshold of one leaves nothing hot
        least, largest = (replace(m, mode=mode, threshold=1.0).apply(images, context)[1] for m in (MIN, MAX))
        assert (bool(least.any()), bool(largest.all())) == (False, True)
    # Where the server and the adversary look the same way, utility has priority.
    assert not MIN.apply(images, replace(context, adversary=context.server))[1].any()
    alone = replace(context, adversary=None)
    with pytest.raises(DefenseError, match="the context has none; allowed: a context with one, or delta='max'"):
        MIN.apply(images, alone)
    assert torch.equal(MAX.apply(images, alone)[1], MAX.apply(images, context)[1])


def test_pixels_outside_the_mask_stay_bit_for_bit_and_black_ones_are_black(context: FitContext) -> None:
    images = context.images.clone()
    for masks in (MIN, MAX, replace(MIN, fill="blur", iterations=3), replace(MAX, fill="blur")):
        changed, mask = masks.apply(images, context)
        assert torch.equal(images, context.images)
        outside = ~mask[:, None].expand_as(images)
        assert torch.equal(changed[outside], images[outside])
        assert not torch.equal(changed, images)
        for channel, value in enumerate(BLACK if masks.fill == "black" else ()):
            assert (changed[:, channel][mask] == value).all()


def test_more_iterations_mask_more_and_look_at_the_masked_image(context: FitContext) -> None:
    for masks in (MIN, MAX):
        once, first = masks.apply(context.images, context)
        twice, both = replace(masks, iterations=2).apply(context.images, context)
        again, second = masks.apply(once, context)
        assert torch.equal(both, first | second)
        assert torch.equal(twice, again)
        assert masks is MAX or both.sum() > first.sum(), "the second iteration may look at the first image again"


# ---- hot and cold


def test_the_scalar_threshold_is_where_blue_falls_below_99_percent() -> None:
    values = torch.tensor([0.0, 0.0625, 0.125, 0.25, 0.375, 0.5, 0.625, 0.8, 1.0])
    torch.testing.assert_close(jet_blue(values), torch.tensor([0.5, 0.75, 1.0, 1.0, 1.0, 0.5, 0.0, 0.0, 0.0]))
    values = torch.linspace(0, 1, 100_001, dtype=torch.float64)
    blue = values[jet_blue(values) >= 0.99]
    assert (float(blue.min()), float(blue.max())) == pytest.approx((0.1225, MODES["scalar"]), abs=2e-5)
    warm = values > 0.25
    differ = is_hot(values[warm], "blue_literal", 0.99) != is_hot(values[warm], "scalar", MODES["scalar"])
    assert int(differ.sum()) <= 1
    assert is_hot(values[:1], "blue_literal", 0.99).all(), "word for word, the coldest pixel is hot"


def test_a_percentile_counts_pixels_of_each_image_alone() -> None:
    generator = torch.Generator().manual_seed(0)
    values = torch.rand(3, 20, 20, generator=generator) * torch.tensor([1.0, 0.1, 0.0])[:, None, None]
    hot = is_hot(values, "percentile", 0.99)
    assert hot.sum((1, 2)).tolist() == [4, 4, 0]  # 1 % of 400; of an empty map nothing
    assert values[0][hot[0]].min() > values[0][~hot[0]].max()


def test_blurring_is_scipys_box_with_mirrored_borders() -> None:
    for shape in ((28, 28), (50, 35), (112, 112), (11, 12)):
        images = torch.randn(2, 2, *shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        expected = uniform_filter(images.numpy(), (0, 0, box_side(*shape), box_side(*shape)), mode="mirror")
        torch.testing.assert_close(box_blur(images), torch.from_numpy(expected), rtol=1e-9, atol=1e-9)
    assert [box_side(side, side + 1) for side in (224, 112, 56, 32, 4)] == [40, 20, 10, 6, 2]
