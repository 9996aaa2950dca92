"""Delta masks: what spec and paper say must hold of them, and blurring against SciPy."""

from dataclasses import replace

import pytest
import torch
from scipy.ndimage import uniform_filter
from torch import Tensor, nn

from defenses.base import DefenseError
from defenses.fitting import FitContext
from defenses.smashed.delta_masks import HOT, DeltaMasks, box_blur, box_side, grad_cam

BLACK = torch.tensor([-2.1, -2.0, -1.8])
MIN = DeltaMasks(delta="min", fill="black", iterations=1)
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


def test_masks_are_what_is_cold_for_the_server_and_for_min_hot_for_the_adversary(context: FitContext) -> None:
    images = context.images
    assert context.adversary is not None
    for fill in ("black", "blur"):
        hot_server = cams(context, context.server, images) > HOT
        hot_adversary = cams(context, context.adversary, images) > HOT
        least, largest = (replace(masks, fill=fill).apply(images, context)[1] for masks in (MIN, MAX))
        assert torch.equal(largest, ~hot_server)
        assert torch.equal(least, ~hot_server & hot_adversary)
        assert 0 < least.sum() < largest.sum() < largest.numel()
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


def test_blurring_is_scipys_box_with_mirrored_borders() -> None:
    for shape in ((28, 28), (50, 35), (112, 112), (11, 12)):
        images = torch.randn(2, 2, *shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        expected = uniform_filter(images.numpy(), (0, 0, box_side(*shape), box_side(*shape)), mode="mirror")
        torch.testing.assert_close(box_blur(images), torch.from_numpy(expected), rtol=1e-9, atol=1e-9)
    assert [box_side(side, side + 1) for side in (224, 112, 56, 32, 4)] == [40, 20, 10, 6, 2]
