"""Grad-CAM against the whole graph of autograd, image by image, and against closed forms."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from defenses.base import DefenseError
from defenses.smashed.grad_cam import grad_cam, last_map_layer


def network(seed: int = 0, *, inplace: bool = True) -> nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        front = nn.Sequential(nn.Conv2d(3, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU(inplace), nn.MaxPool2d(2))
        back = nn.Sequential(nn.Conv2d(6, 8, 3, padding=1), nn.ReLU(inplace), nn.MaxPool2d(2))
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
    assert maps.grad is not None
    cam = torch.zeros(maps.shape[2:], dtype=picture.dtype)
    for channel in range(maps.shape[1]):
        weight = sum(maps.grad[0, channel, i, j] for i in range(cam.shape[0]) for j in range(cam.shape[1]))
        cam += weight / cam.numel() * maps.detach()[0, channel]
    scaled = bilinear(cam.clamp(min=0), *picture.shape[2:])
    scaled = scaled - scaled.min()
    return scaled / (scaled.max() + 1e-7)


def bilinear(cam: Tensor, height: int, width: int) -> Tensor:
    """Pixel centres at (i + 0.5) / n, the border repeated."""

    def places(small: int, large: int) -> list[tuple[int, int, float]]:
        found = []
        for at in range(large):
            place = max((at + 0.5) * small / large - 0.5, 0.0)
            low = min(int(place), small - 1)
            found.append((low, min(low + 1, small - 1), place - low))
        return found

    scaled = torch.zeros(height, width, dtype=cam.dtype)
    for i, (top, bottom, down) in enumerate(places(cam.shape[0], height)):
        for j, (left, right, along) in enumerate(places(cam.shape[1], width)):
            upper = (1 - along) * cam[top, left] + along * cam[top, right]
            lower = (1 - along) * cam[bottom, left] + along * cam[bottom, right]
            scaled[i, j] = (1 - down) * upper + down * lower
    return scaled


@pytest.mark.parametrize("stage", [0, 1])
@pytest.mark.parametrize("number", [None, 3])
def test_maps_are_those_of_the_formula(stage: int, number: int | None):
    net, images = network().eval(), pictures()
    if number is not None:
        net[4].bias.data[number] += 1e6  # the largest logit, whatever the images
    cams = grad_cam(net, images, net[stage])
    expected = torch.stack([slow(net, image[None], stage, number) for image in images])
    torch.testing.assert_close(cams, expected, rtol=1e-9, atol=1e-9)
    assert (cams.amax((1, 2)) > 0.99).any(), "no image has a map: nothing was compared"


def test_the_package_grad_cam_says_the_same():
    """Where it is installed; it is no dependency, because it brings OpenCV, Matplotlib and scikit-learn."""
    package = pytest.importorskip("pytorch_grad_cam")
    net, images = network(inplace=False).float().eval(), pictures().float()
    expected = package.GradCAM(model=net, target_layers=[net[1]])(input_tensor=images, targets=None)
    torch.testing.assert_close(grad_cam(net, images, net[1]), torch.from_numpy(expected), rtol=0, atol=1e-4)


def test_a_linear_network_has_a_map_in_closed_form():
    """One map A behind a sum: dy / dA is the weight everywhere, so that v is A, rectified and scaled."""
    layer = nn.Identity()
    net = nn.Sequential(layer, nn.Flatten(), nn.Linear(16, 2))
    net[2].weight.data = torch.stack([torch.full((16,), 2.0), torch.full((16,), -2.0)])
    net[2].bias.data = torch.zeros(2)
    image = torch.arange(-4.0, 12.0).view(1, 1, 4, 4)
    positive = image.clamp(min=0)[0] / 11
    torch.testing.assert_close(grad_cam(net, image, layer), positive, rtol=1e-6, atol=1e-6)
    # Evidence against class 1 is where the image is negative.
    net[2].bias.data[1] = 1000.0
    torch.testing.assert_close(grad_cam(net, image, layer), (-image).clamp(min=0)[0] / 4)


def test_a_map_without_evidence_is_cold_everywhere():
    layer = nn.Identity()
    net = nn.Sequential(layer, nn.Flatten(), nn.Linear(16, 2, bias=False))
    net[2].weight.data = torch.stack([torch.full((16,), -1.0), torch.full((16,), -2.0)])
    assert not grad_cam(net, torch.rand(2, 1, 4, 4), layer).any()
    net[2].weight.data *= -1
    assert not grad_cam(net, torch.ones(2, 1, 4, 4), layer).any()  # the same everywhere: nothing stands out


def test_a_network_is_left_as_it_was():
    net, images = network().train(), pictures().requires_grad_()
    net[0].eval()
    net[4].weight.requires_grad_(requires_grad=False)
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    modes = [layer.training for layer in net.modules()]
    cams = grad_cam(net, images, last_map_layer(net, images))
    assert not cams.requires_grad
    assert torch.is_grad_enabled()
    assert [layer.training for layer in net.modules()] == modes
    assert all(torch.equal(tensor, before[name]) for name, tensor in net.state_dict().items())
    assert all(weight.grad is None for weight in (*net.parameters(), images))
    assert not any(layer._forward_hooks for layer in net.modules())


def test_frozen_networks_have_the_same_maps():
    net, images = network(), pictures()
    expected = grad_cam(net, images, net[1])
    assert torch.equal(grad_cam(net.requires_grad_(requires_grad=False), images, net[1]), expected)
    with torch.no_grad():
        assert torch.equal(grad_cam(net, images, net[1]), expected)


def test_an_images_map_does_not_depend_on_the_batch():
    net, images = network(), pictures()
    alone = torch.cat([grad_cam(net, image[None], net[1]) for image in images])
    torch.testing.assert_close(grad_cam(net, images, net[1]), alone)


@pytest.mark.parametrize(
    ("make", "chosen"),
    [(lambda models: models.resnet18(), "layer4"), (lambda models: models.vgg11(init_weights=False), "features")],
    ids=["resnet", "vgg"],
)
def test_the_last_maps_are_those_of_the_last_convolutional_block(make: Any, chosen: str):
    torchvision = pytest.importorskip("torchvision")
    with torch.random.fork_rng():
        net = make(torchvision.models)
    assert last_map_layer(net, torch.rand(2, 3, 224, 224)) is getattr(net, chosen)


def test_maps_are_seven_positions_wide_or_as_wide_as_there_are():
    """Stages end at a half and at a quarter of the image's side; where that is too small it is the layer before the pool."""
    net = network()
    front, back = net[0], net[1]
    assert isinstance(front, nn.Sequential)
    assert isinstance(back, nn.Sequential)
    assert last_map_layer(net, pictures(1, 28, 40)) is back
    assert last_map_layer(net, pictures(1, 27, 40)) is back[1]
    assert last_map_layer(net, pictures(1, 12, 20)) is front[2]
    assert last_map_layer(net, pictures(1, 4, 4)) is front[2]


def test_maps_before_the_cut_are_not_looked_at():
    """At 12 pixels the front has 12 x 12 inside and sends 6 x 6, which no later maps exceed."""
    net = network()
    front, back = net[0], net[1]
    assert isinstance(back, nn.Sequential)
    assert last_map_layer(net, pictures(1, 12, 20), front) is back[1]
    assert last_map_layer(net, pictures(1, 28, 40), front) is back


@pytest.mark.parametrize(
    ("layer", "classes", "message"),
    [(4, 5, "returns no maps"), (None, 5, "is not run by the model"), (1, 1, r"allowed: logits \(B, K\) with K >= 2")],
)
def test_what_has_no_map_is_refused(layer: int | None, classes: int, message: str):
    net = network()
    net[4] = nn.Linear(32, classes).double()
    with pytest.raises(DefenseError, match=message):
        grad_cam(net, pictures(), nn.Identity() if layer is None else net[layer])
    assert not any(module._forward_hooks for module in net.modules())


def test_a_network_without_maps_is_refused():
    net = nn.Sequential(nn.Flatten(), nn.Linear(12, 2))
    with pytest.raises(DefenseError, match="cut the model earlier or use larger images"):
        last_map_layer(net, torch.rand(1, 3, 2, 2))
