"""Cuts of convolutional classifiers: the halves are the whole, and the shapes are the published ones."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from clients.models.classifiers import ModelError, build_model
from clients.models.cuts import CUTS, halves

SMALL = ("vgg_small", "resnet20", "efficientnet_lite0")
EVERY = [(name, cut, "batch") for name, cuts in CUTS.items() for cut in cuts]
EVERY += [(name, cut, "group") for name in SMALL for cut in CUTS[name]]


def build(name: str, norm: str = "batch") -> nn.Module:
    return build_model(name, num_classes=3, input_shape=(3, 32, 32), norm=norm)


@pytest.fixture(scope="module")
def wholes() -> dict[tuple[str, str], nn.Module]:
    """Each network once: VGG16 has 134 million weights, and no normalisation."""
    return {(name, "batch"): build(name) for name in CUTS} | {
        (name, "group"): build(name, norm="group") for name in SMALL
    }


@pytest.mark.long
@pytest.mark.parametrize(("name", "cut", "norm"), EVERY)
def test_the_halves_are_the_whole_bit_for_bit(name: str, cut: str, norm: str, wholes: dict) -> None:
    model = wholes[name, norm].eval()
    client, server = halves(model, name, cut)
    images = torch.rand(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        features = client(images)
        kept = features.clone()
        assert torch.equal(server(features), model(images))
    assert features.ndim == 4
    # The features are attacked after they were answered.
    assert torch.equal(features, kept)


@pytest.mark.long
@pytest.mark.parametrize(("name", "cut"), [(name, cuts[1]) for name, cuts in CUTS.items()])
def test_the_halves_hold_every_weight_of_the_whole_once(name: str, cut: str, wholes: dict) -> None:
    model = wholes[name, "batch"]
    parts = [parameter for half in halves(model, name, cut) for parameter in half.parameters()]
    assert len(parts) == len(list(model.parameters()))
    assert {id(parameter) for parameter in parts} == {id(parameter) for parameter in model.parameters()}
    buffers = [id(buffer) for half in halves(model, name, cut) for buffer in half.buffers()]
    assert sorted(buffers) == sorted(id(buffer) for buffer in model.buffers())


@pytest.mark.parametrize("training", [True, False])
def test_the_halves_are_in_the_mode_of_the_whole(training: bool) -> None:
    whole = build("resnet20").train(training)
    halved = halves(whole, "resnet20", "block5")
    assert all(layer.training == training for half in (*halved, whole) for layer in half.modules())


def test_training_the_halves_trains_the_whole() -> None:
    whole = build("vgg_small")
    other = copy.deepcopy(whole)
    images, labels = torch.rand(4, 3, 32, 32), torch.tensor([0, 1, 2, 1])
    client, server = halves(other, "vgg_small", "conv4")
    for forward in (whole, nn.Sequential(client, server)):
        optimizer = torch.optim.SGD(forward.parameters(), 0.1)
        nn.functional.cross_entropy(forward(images), labels).backward()
        optimizer.step()
    assert all(torch.equal(a, b) for a, b in zip(whole.state_dict().values(), other.state_dict().values(), strict=True))


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "side", "shapes"),
    [
        # ADP, section 2.3 of our specification; 512 x 28 x 28 = 401,408 values are the paper's own number.
        ("vgg16", 224, [(128, 112, 112), (512, 28, 28), (512, 14, 14)]),
        ("resnet50", 224, [(512, 28, 28), (1024, 14, 14), (1024, 14, 14)]),
        # Table 1 of Tan and Le 2019 (EfficientNet-B0), whose stages 3, 4 and 6 these are; the table counts the stem as stage 1.
        ("efficientnet_lite0", 224, [(24, 56, 56), (40, 28, 28), (112, 14, 14)]),
        ("vgg_small", 56, [(16, 56, 56), (32, 28, 28), (64, 14, 14)]),
        ("resnet20", 32, [(16, 32, 32), (32, 16, 16), (64, 8, 8)]),
    ],
)
def test_features_have_the_published_shapes(name: str, side: int, shapes: list[tuple[int, ...]], wholes: dict) -> None:
    model = copy.deepcopy(wholes[name, "batch"]).to("meta").eval()
    images = torch.zeros(1, 3, side, side, device="meta")
    assert [tuple(halves(model, name, cut)[0](images).shape[1:]) for cut in CUTS[name]] == shapes


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "norm", "cut"),
    [("vgg16", "batch", c) for c in CUTS["vgg16"]] + [("vgg_small", n, "conv4") for n in ("batch", "group")],
)
def test_convolutions_are_counted_from_one_and_the_cut_is_behind_the_relu(
    name: str, norm: str, cut: str, wholes: dict
) -> None:
    client, server = halves(wholes[name, norm], name, cut)
    assert sum(isinstance(layer, nn.Conv2d) for layer in client) == int(cut.removeprefix("conv"))
    assert isinstance(client[-1], nn.ReLU)
    assert isinstance(server[0], (nn.MaxPool2d, nn.Conv2d))


@pytest.mark.long
def test_bottlenecks_are_counted_from_one(wholes: dict) -> None:
    model = wholes["resnet50", "batch"]
    ends = [halves(model, "resnet50", cut)[0][-1] for cut in CUTS["resnet50"]]
    assert ends == [model.layer2[0], model.layer3[0], model.layer3[4]]


@pytest.mark.parametrize(
    ("name", "cut", "message"),
    [
        ("lenet", "conv2", "model 'lenet' cannot be cut .* these can: vgg16, resnet50,"),
        ("vgg_small", "conv3", "cut is 'conv3'; vgg_small can be cut at conv2, conv4, conv6"),
        ("vgg_small", "", "cut is ''"),
    ],
)
def test_what_cannot_be_cut_is_refused_with_what_can(name: str, cut: str, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        halves(build("lenet"), name, cut)


@pytest.mark.parametrize("name", ["resnet50", "vgg_small", "efficientnet_lite0", "vgg16", "resnet20"])
def test_a_model_of_another_name_is_refused(name: str) -> None:
    with pytest.raises(ModelError, match=f"Linear is not the model '{name}'"):
        halves(nn.Linear(2, 2), name, CUTS[name][0])
