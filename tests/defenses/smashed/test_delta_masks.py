"""Delta masks and their blur; Grad-CAM against the whole graph of autograd, image by image, and against closed forms."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.ndimage import map_coordinates, uniform_filter
from torch import Tensor, nn

from defenses.base import DefenseError
from defenses.fitting import FitContext
from defenses.smashed.delta_masks import HOT, DeltaMasks, box_blur, box_side, grad_cam, last_map_layer

BLACK = torch.tensor([-2.1, -2.0, -1.8])
MIN = DeltaMasks(delta="min", fill="black", iterations=1)
MAX = replace(MIN, delta="max")


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
    images = torch.randn(6, 3, 20, 20, generator=torch.Generator().manual_seed(1))
    return FitContext(client, half(3, 1), half(2, 2), images, torch.arange(6) % 3, BLACK)


def cams(context: FitContext, which: nn.Module, images: Tensor) -> Tensor:
    return grad_cam(nn.Sequential(context.client, which), images, which[1])  # type: ignore[index]


def test_masks_are_what_is_cold_for_the_server_and_for_min_hot_for_the_adversary(context: FitContext) -> None:
    images = context.images
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


def network(seed: int = 0) -> nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        front = nn.Sequential(nn.Conv2d(3, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU(inplace=True), nn.MaxPool2d(2))
        back = nn.Sequential(nn.Conv2d(6, 8, 3, padding=1), nn.ReLU(inplace=True), nn.MaxPool2d(2))
        net = nn.Sequential(front, back, nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(32, 5))
    for weight in net.parameters():
        weight.data *= 3
    return net.double()


def pictures(count: int = 4, height: int = 12, width: int = 20) -> Tensor:
    return torch.randn(count, 3, height, width, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def slow(net: nn.Sequential, picture: Tensor, stage: int, number: int | None) -> Tensor:
    """One image, plain loops, the whole graph: the formula word for word. (1, C, H, W) -> (H, W)."""
    maps = picture.clone().requires_grad_()
    for layer in net[: stage + 1]:
        maps = layer(maps)
    maps.retain_grad()
    logits = maps
    for layer in net[stage + 1 :]:
        logits = layer(logits)
    number = int(logits.argmax()) if number is None else number
    logits[0, number].backward()
    cam = torch.zeros(maps.shape[2:], dtype=picture.dtype)
    for channel in range(maps.shape[1]):
        weight = sum(maps.grad[0, channel, i, j] for i in range(cam.shape[0]) for j in range(cam.shape[1]))
        cam += weight / cam.numel() * maps.detach()[0, channel]
    # Pixel centres at (i + 0.5) / n, the border repeated.
    places = [(np.arange(n) + 0.5) * m / n - 0.5 for m, n in zip(cam.shape, picture.shape[2:], strict=True)]
    positions = np.meshgrid(*places, indexing="ij")
    scaled = torch.from_numpy(map_coordinates(cam.clamp(min=0).numpy(), positions, order=1, mode="nearest"))
    scaled = scaled - scaled.min()
    return scaled / (scaled.max() + 1e-7)


def test_maps_are_those_of_the_formula_in_any_batch_and_of_frozen_networks() -> None:
    for stage, number in ((0, None), (0, 3), (1, None), (1, 3)):
        net, images = network().eval(), pictures(3)
        if number is not None:
            net[4].bias.data[number] += 1e6  # the largest logit, whatever the images
        cams = grad_cam(net, images, net[stage])
        assert not any(layer._forward_hooks for layer in net.modules())
        assert all(weight.grad is None for weight in net.parameters())
        expected = torch.stack([slow(net, image[None], stage, number) for image in images])
        torch.testing.assert_close(cams, expected, rtol=1e-9, atol=1e-9)
        assert (cams.amax((1, 2)) > 0.99).any(), "no image has a map: nothing was compared"
        assert torch.equal(grad_cam(net.requires_grad_(requires_grad=False), images, net[stage]), cams)
        with torch.no_grad():
            assert torch.equal(grad_cam(net, images, net[stage]), cams)


def test_a_linear_network_has_a_map_in_closed_form() -> None:
    """One map A behind a sum: dy / dA is the weight everywhere, so that v is A, rectified and scaled."""
    layer = nn.Identity()
    net = nn.Sequential(layer, nn.Flatten(), nn.Linear(16, 2))
    net[2].weight.data = torch.stack([torch.full((16,), 2.0), torch.full((16,), -2.0)])
    net[2].bias.data = torch.zeros(2)
    image = torch.arange(-4.0, 12.0).view(1, 1, 4, 4)
    torch.testing.assert_close(grad_cam(net, image, layer), image.clamp(min=0)[0] / 11, rtol=1e-6, atol=1e-6)
    assert not grad_cam(net, torch.ones(2, 1, 4, 4), layer).any()  # the same everywhere: nothing stands out
    net[2].weight.data = -net[2].weight.data.abs()
    assert not grad_cam(net, torch.rand(2, 1, 4, 4), layer).any()  # no evidence


def test_maps_are_seven_positions_wide_or_as_wide_as_there_are_and_behind_the_cut() -> None:
    """Stages end at a half and at a quarter of the image's side; where that is too small it is the layer before the pool."""
    net = network()
    front, back = net[0], net[1]
    for side, wanted in ((28, back), (27, back[1]), (12, front[2]), (4, front[2])):
        assert last_map_layer(net, pictures(1, side, side + 8)) is wanted
    # At 12 pixels the front has 12 x 12 inside and sends 6 x 6, which no later maps exceed.
    for side, wanted in ((12, back[1]), (28, back)):
        assert last_map_layer(net, pictures(1, side, side + 8), front) is wanted


def test_what_has_no_map_is_refused() -> None:
    for layer, classes, message in (
        (4, 5, "returns no maps"), (None, 5, "is not run by the model"), (1, 1, r"allowed: logits \(B, K\) with K >= 2"),
    ):  # fmt: skip
        net = network()
        net[4] = nn.Linear(32, classes).double()
        with pytest.raises(DefenseError, match=message):
            grad_cam(net, pictures(), nn.Identity() if layer is None else net[layer])
        assert not any(module._forward_hooks for module in net.modules())
    with pytest.raises(DefenseError, match="cut the model earlier or use larger images"):
        last_map_layer(nn.Sequential(nn.Flatten(), nn.Linear(12, 2)), torch.rand(1, 3, 2, 2))
