"""Which layers see the pixels and stand before a ReLU, and what rank a gradient has."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from attacks.exact.linear_layer import LayerGradient, linear_layers, low_rank
from attacks.observations import AttackError
from clients.models.classifiers import build_model

SHAPE = (1, 6, 6)


def mlp(activation: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(36, 24), activation, nn.Linear(24, 12), nn.ReLU(), nn.Linear(12, 4))


class Written(nn.Module):
    """A ReLU that is a function and no module, and layers defined in another order than they are called in."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(24, 4)
        self.body = nn.Linear(36, 24)

    def forward(self, images: Tensor) -> Tensor:
        result: Tensor = self.head(F.relu(self.body(images.flatten(1))))
        return result


def seen(model: nn.Module) -> dict[str, tuple[bool, bool]]:
    found = linear_layers(model.eval(), SHAPE, torch.zeros(0))
    return {layer.name: (layer.sees_pixels, layer.rectified) for layer in found}


def test_layers_are_told_apart_by_what_they_do() -> None:
    assert seen(mlp(nn.ReLU())) == {"1": (True, True), "3": (False, True), "5": (False, False)}
    assert seen(Written()) == {"body": (True, True), "head": (False, False)}
    for activation in (nn.Sigmoid(), nn.LeakyReLU(), nn.GELU(), nn.Identity(), nn.Tanh()):
        assert seen(mlp(activation))["1"] == (True, False), activation
    for pool, size, sees in ((1, 36, True), (2, 9, False)):
        pooled = nn.Sequential(nn.AvgPool2d(pool), nn.Flatten(), nn.Linear(size, 24), nn.ReLU(), nn.Linear(24, 4))
        assert seen(pooled)["2"] == (sees, True)
    assert not any(pixels for pixels, _ in seen(build_model("lenet", num_classes=4, input_shape=SHAPE)).values())
    tokens = nn.Sequential(nn.Flatten(2), nn.Linear(36, 36), nn.Flatten(), nn.Linear(36, 4))
    assert set(seen(tokens)) == {"3"}, "layers on tokens are left out"


def product(rank: int, noise: float = 0.0) -> LayerGradient:
    stream = torch.Generator().manual_seed(1)
    left, right = torch.randn(30, rank, generator=stream), torch.randn(rank, 50, generator=stream)
    return LayerGradient((left @ right + noise * torch.randn(30, 50, generator=stream)).double(), left.sum(1).double())


def test_the_rank_is_that_of_the_examples_and_one_that_tells_nothing_is_refused() -> None:
    parts = low_rank(product(5), 5)
    assert parts.rank == 5
    assert torch.allclose(parts.left @ parts.right, product(5).weight, atol=1e-5)
    assert torch.allclose(parts.left.T @ parts.left, torch.eye(5, dtype=torch.float64))
    assert low_rank(product(5), 8).rank == 5  # three examples equal others
    assert low_rank(product(5, 1e-3), 5).gap > 100 * parts.gap
    for gradient, examples, why in (
        (product(5, 1.0), 5, "without a gap there, noise"),
        (product(9), 5, "without a gap there, noise"),
        (product(5), 30, "fills the rank of a layer of 50 inputs and 30 outputs"),
        (LayerGradient(torch.zeros(3, 4).double(), None), 1, "is zero"),
    ):
        with pytest.raises(AttackError, match=f"does not apply.*{why}"):
            low_rank(gradient, examples)
