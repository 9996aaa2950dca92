"""Cuts of convolutional classifiers and adversaries of the halves: the halves are the whole."""

import copy

import pytest
import torch
from torch import nn

from clients.models.adversaries import AdversaryBuilder
from clients.models.classifiers import ModelError, build_model
from clients.models.cuts import CUTS, halves


def build(name: str, norm: str = "batch") -> nn.Module:
    return build_model(name, num_classes=3, input_shape=(3, 32, 32), norm=norm)


SHAPES = {
    # ADP, section 2.3 of our specification; 512 x 28 x 28 = 401,408 values are the paper's own number.
    "vgg16": (224, [(128, 112, 112), (512, 28, 28), (512, 14, 14)]),
    "resnet50": (224, [(512, 28, 28), (1024, 14, 14), (1024, 14, 14)]),
    # Table 1 of Tan and Le 2019 (EfficientNet-B0), whose stages 3, 4 and 6 these are; the table counts the stem as stage 1.
    "efficientnet_lite0": (224, [(24, 56, 56), (40, 28, 28), (112, 14, 14)]),
    "vgg_small": (56, [(16, 56, 56), (32, 28, 28), (64, 14, 14)]),
    "resnet20": (32, [(16, 32, 32), (32, 16, 16), (64, 8, 8)]),
}


def check_halves(name: str, norm: str) -> None:
    model = build(name, norm).eval()
    images = torch.rand(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    for cut in CUTS[name]:
        client, server = halves(model, name, cut)
        with torch.no_grad():
            features = client(images)
            kept = features.clone()
            assert torch.equal(server(features), model(images)), (name, cut)
        assert features.ndim == 4
        # The features are attacked after they were answered.
        assert torch.equal(features, kept)
        for part in ("parameters", "buffers"):
            found = [id(one) for half in (client, server) for one in getattr(half, part)()]
            assert sorted(found) == sorted(id(one) for one in getattr(model, part)()), (name, cut)
        if name.startswith("vgg"):  # convolutions are counted from one, and the cut is behind the ReLU
            assert sum(isinstance(layer, nn.Conv2d) for layer in client) == int(cut.removeprefix("conv"))
            assert isinstance(client[-1], nn.ReLU)
            assert isinstance(server[0], (nn.MaxPool2d, nn.Conv2d))
    if name == "resnet50":  # bottlenecks are counted from one
        ends = [halves(model, name, cut)[0][-1] for cut in CUTS[name]]
        assert ends == [model.layer2[0], model.layer3[0], model.layer3[4]]
    side, shapes = SHAPES[name]
    hollow, images = model.to("meta"), torch.zeros(1, 3, side, side, device="meta")
    assert [tuple(halves(hollow, name, cut)[0](images).shape[1:]) for cut in CUTS[name]] == shapes


def test_the_halves_of_small_models_are_the_whole_and_train_it(subtests: pytest.Subtests) -> None:
    for name in ("vgg_small", "resnet20"):
        for norm in ("batch", "group"):
            check_halves(name, norm)
    whole = build("vgg_small")
    other = copy.deepcopy(whole)
    images, labels = torch.rand(4, 3, 32, 32), torch.tensor([0, 1, 2, 1])
    client, server = halves(other, "vgg_small", "conv4")
    for forward in (whole, nn.Sequential(client, server)):
        optimizer = torch.optim.SGD(forward.parameters(), 0.1)
        nn.functional.cross_entropy(forward(images), labels).backward()
        optimizer.step()
    assert all(torch.equal(a, b) for a, b in zip(whole.state_dict().values(), other.state_dict().values(), strict=True))
    for training in (True, False):
        halved = halves(whole.train(training), "vgg_small", "conv4")
        assert all(layer.training == training for half in (*halved, whole) for layer in half.modules())
    for name, cut, message in (
        ("lenet", "conv2", "model 'lenet' cannot be cut .* these can: vgg16, resnet50,"),
        ("vgg_small", "conv3", "cut is 'conv3'; vgg_small can be cut at conv2, conv4, conv6"),
        ("vgg_small", "", "cut is ''"),
        *((name, cuts[0], f"Linear is not the model '{name}'") for name, cuts in CUTS.items()),
    ):
        with subtests.test(message), pytest.raises(ModelError, match=message):
            halves(nn.Linear(2, 2), name, cut)


@pytest.mark.long
def test_the_halves_of_large_models_are_the_whole() -> None:
    for name in ("efficientnet_lite0", "vgg16", "resnet50"):
        check_halves(name, "batch")


SHAPE = (3, 32, 32)
SMALL = [(name, cut) for name in ("vgg_small", "resnet20") for cut in CUTS[name]]


def test_adversaries_classify_the_features() -> None:
    for name, cut in SMALL:
        for architecture in ["split", "tuned", "full"]:
            model = build_model(name, num_classes=3, input_shape=SHAPE).eval()
            features = halves(model, name, cut)[0](torch.rand(2, *SHAPE))
            adversary = AdversaryBuilder(name, cut, SHAPE, weights=model.state_dict())(architecture, 5, 0)
            assert adversary.training
            assert adversary(features).shape == (2, 5)
            if architecture == "full":
                first = next(layer for layer in adversary.modules() if isinstance(layer, nn.Conv2d))
                assert first.in_channels == features.shape[1]
    # Features that are too small for a whole network are enlarged.
    adversary = AdversaryBuilder("vgg_small", "conv6", (1, 16, 16), width=4)("full", 2, 0)
    small = torch.rand(1, 1, 2, 2)
    assert torch.equal(adversary[0](small)[0, 0], small[0, 0].kron(torch.ones(2, 2)))


def test_weights_are_new_or_those_of_the_server_half_except_for_the_last_layer() -> None:
    for norm in ["batch", "group"]:
        model = build_model("resnet20", num_classes=2, input_shape=SHAPE, norm=norm, seed=1)
        _, server = halves(model, "resnet20", "block5")
        builder = AdversaryBuilder("resnet20", "block5", SHAPE, norm=norm, weights=model.state_dict())
        known = server.state_dict()
        last = [name for name in known if name.startswith(f"{len(server) - 1}.")]
        assert len(last) == 2
        for architecture, kept in (("tuned", True), ("split", False)):
            built = builder(architecture, 2, 7).state_dict()
            assert built.keys() == known.keys()
            weights = [name for name in known if known[name].ndim == 4]
            assert weights
            assert all(torch.equal(built[name], known[name]) == kept for name in weights)
            assert not torch.equal(built[last[0]], known[last[0]])
        # Training the adversary must not train the attacked model.
        tuned = builder("tuned", 2, 7)
        assert not {p.data_ptr() for p in tuned.parameters()} & {p.data_ptr() for p in model.parameters()}
