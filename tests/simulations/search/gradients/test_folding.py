"""Convolutions with their BatchNorm taken in, against the two apart."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from clients.models.classifiers import build_model
from simulations.search.gradients.folding import FoldedConv, fold
from simulations.search.gradients.gradients import ExampleGradients
from tests.simulations.search.gradients.test_gradients import by_loop, images_and_targets, trained


class Branches(nn.Module):
    """Pairs that may be folded and such that look like it.

    Foldable: ``plain``, ``biased``. Not: ``twice`` (another layer sees its output, too), ``apart`` (its norm does not follow it
    among the modules).
    """

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.plain, self.plain_norm = nn.Conv2d(3, 4, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(4)
        self.biased, self.biased_norm = nn.Conv2d(4, 4, 3, padding=1, groups=2), nn.BatchNorm2d(4, affine=False)
        self.twice, self.twice_norm = nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4)
        self.apart, self.between, self.apart_norm = nn.Conv2d(4, 4, 1), nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4)
        self.last = nn.Linear(4, 5)

    def forward(self, images: Tensor) -> Tensor:
        found = F.relu(self.plain_norm(self.plain(images)))
        found = F.relu(self.biased_norm(self.biased(found)))
        once = self.twice(found)
        found = self.twice_norm(once) + once
        found = self.between(F.relu(self.apart_norm(self.apart(found))))
        return self.last(found.mean((2, 3)))


class Choosing(nn.Module):
    """Cannot be traced: what it does depends on the numbers."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.norm, self.last = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Linear(4, 5)

    def forward(self, images: Tensor) -> Tensor:
        found = self.norm(self.conv(images))
        return self.last((F.relu(found) if found.sum() > -1e9 else found).mean((2, 3)))


def uneven(model: nn.Module) -> nn.Module:
    """Weights of the norms that are not those of initialisation, one of them 0."""
    trained(model)
    for layer in model.modules():
        if isinstance(layer, nn.BatchNorm2d) and layer.affine:
            nn.init.normal_(layer.weight, generator=torch.Generator().manual_seed(2))
            nn.init.normal_(layer.bias, generator=torch.Generator().manual_seed(3))
            layer.weight.data[0] = 0
    return model.eval().double()


@pytest.mark.parametrize(
    ("make", "names"),
    [
        (Branches, {"plain", "biased"}),
        (Choosing, set()),
        (lambda: build_model("resnet20", num_classes=5, input_shape=(3, 32, 32)), set()),  # GroupNorm cannot be folded
    ],
)
def test_what_can_be_folded_is_and_gradients_are_those_of_the_layers_apart(
    make: Callable[[], nn.Module], names: set[str]
) -> None:
    model = uneven(make())
    folded = fold(model)
    assert {name for name, layer in folded.named_modules() if isinstance(layer, FoldedConv)} == names
    images, targets = (one.double() for one in images_and_targets(3))
    torch.testing.assert_close(folded(images), model(images))
    ours = list(ExampleGradients(model).of(images, targets))
    theirs = [torch.stack(column) for column in zip(*by_loop(model, images, targets), strict=True)]
    assert [one.shape for one in ours] == [one.shape for one in theirs]
    for mine, known in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, known, rtol=1e-9, atol=1e-12)


def test_every_norm_of_a_residual_network_is_folded() -> None:
    model = build_model("resnet20", num_classes=5, input_shape=(3, 32, 32), norm="batch").eval()
    norms = sum(isinstance(layer, nn.BatchNorm2d) for layer in model.modules())
    folded = fold(model)
    assert sum(isinstance(layer, FoldedConv) for layer in folded.modules()) == norms > 18
    assert all(
        torch.equal(a, b)
        for a, b in zip(model.parameters(), (p for p in folded.parameters() if p.requires_grad), strict=True)
    )
