"""Adversaries of cut models: of the right architecture, with the weights that they are said to start from."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from clients.models.adversaries import AdversaryBuilder
from clients.models.classifiers import ModelError, build_model
from clients.models.cuts import CUTS, halves
from clients.models.split.split_adversaries import SplitAdversaryBuilder
from clients.models.split.split_models import SplitShape, build_split_model

SHAPE = (3, 32, 32)
SMALL = [(name, cut) for name in ("vgg_small", "resnet20", "efficientnet_lite0") for cut in CUTS[name]]


@pytest.mark.parametrize("architecture", ["split", "tuned", "full"])
@pytest.mark.parametrize(("name", "cut"), SMALL)
def test_adversaries_classify_the_features(name: str, cut: str, architecture: str) -> None:
    model = build_model(name, num_classes=3, input_shape=SHAPE).eval()
    features = halves(model, name, cut)[0](torch.rand(2, *SHAPE))
    adversary = AdversaryBuilder(name, cut, SHAPE, weights=model.state_dict())(architecture, 5, 0)
    assert adversary.training
    assert adversary(features).shape == (2, 5)
    if architecture == "full":
        first = next(layer for layer in adversary.modules() if isinstance(layer, nn.Conv2d))
        assert first.in_channels == features.shape[1]


@pytest.mark.parametrize("norm", ["batch", "group"])
def test_weights_are_new_or_those_of_the_server_half_except_for_the_last_layer(norm: str) -> None:
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


@pytest.mark.parametrize("architecture", ["split", "full"])
def test_new_weights_follow_from_the_seed(architecture: str) -> None:
    builder = AdversaryBuilder("vgg_small", "conv4", SHAPE, width=4)
    torch.manual_seed(0)
    first = builder(architecture, 2, 3).state_dict()
    torch.manual_seed(1)
    second, other = (builder(architecture, 2, seed).state_dict() for seed in (3, 4))
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert any(not torch.equal(first[name], other[name]) for name in first)


def test_features_that_are_too_small_for_a_whole_network_are_enlarged() -> None:
    adversary = AdversaryBuilder("vgg_small", "conv6", (1, 16, 16), width=4)("full", 2, 0)
    assert adversary(torch.rand(1, 16, 4, 4)).shape == (1, 2)
    assert torch.equal(
        adversary[0](torch.arange(4.0).view(1, 1, 2, 2))[0, 0], torch.arange(4.0).view(2, 2).kron(torch.ones(2, 2))
    )


@pytest.mark.parametrize(
    ("changes", "architecture", "message"),
    [
        ({}, "half", "architecture is 'half'; allowed: 'split', 'tuned', 'full'"),
        ({}, "tuned", "no weights of the attacked model"),
        ({"cut": "conv3"}, "split", "conv2, conv4, conv6"),
        ({"name": "lenet"}, "full", "these can: vgg16"),
    ],
)
def test_adversaries_that_cannot_be_built_are_refused(changes: dict[str, Any], architecture: str, message: str) -> None:
    builder = AdversaryBuilder(**({"name": "vgg_small", "cut": "conv2", "input_shape": (1, 16, 16)} | changes))
    with pytest.raises(ModelError, match=message):
        builder(architecture, 2, 0)


# --- of split transformers

SIZES = SplitShape(patch_size=8, width=16, depth=3, heads=2, edge_blocks=1)


@pytest.mark.parametrize(("architecture", "blocks"), [("split", 2), ("tuned", 2), ("full", 3)])
@pytest.mark.parametrize("widening", [1, 2])
def test_adversaries_of_tokens_classify_them(architecture: str, blocks: int, widening: int) -> None:
    sizes = replace(SIZES, widening=widening)
    edge, server = build_split_model("vit", num_classes=2, input_shape=SHAPE, shape=sizes, seed=1)
    builder = SplitAdversaryBuilder("vit", SHAPE, sizes, server.state_dict())
    adversary = builder(architecture, 5, 7)
    assert adversary.training
    assert len(adversary.blocks) == blocks
    assert adversary(torch.rand(2, edge.num_tokens, widening * edge.dim)).shape == (2, 5)
    known, mine = server.state_dict(), builder(architecture, 2, 7).state_dict()
    weights = [name for name in known if known[name].ndim == 2 and name.startswith("blocks.0.")]
    assert weights
    assert all(torch.equal(mine[name], known[name]) == (architecture == "tuned") for name in weights)
    assert not torch.equal(mine["head.weight"], known["head.weight"])
    again = builder(architecture, 2, 7).state_dict()
    assert all(torch.equal(mine[name], again[name]) for name in mine)


def test_adversaries_of_tokens_that_cannot_be_built_are_refused() -> None:
    builder = SplitAdversaryBuilder("vit", SHAPE, SIZES)
    with pytest.raises(ModelError, match="no weights of the attacked model"):
        builder("tuned", 2, 0)
    with pytest.raises(ModelError, match="architecture is 'half'"):
        builder("half", 2, 0)
