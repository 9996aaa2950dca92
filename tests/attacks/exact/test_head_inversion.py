"""Which layers can be solved, features of the first linear layer of a convolutional network, and images that have them."""

from dataclasses import replace
from functools import cache

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from attacks.exact.head_inversion import HeadInversion, class_features
from attacks.exact.linear_layer import LayerGradient, Read, linear_layers, low_rank
from attacks.exact.spear_plus_plus import SpearPlusPlus
from attacks.guesses import Reconstruction
from attacks.image_measures import mse
from attacks.normalisation import normalise
from attacks.observations import AttackError, ClientUpdate
from clients.models.classifiers import build_model
from tests.attacks.exact.solving import assert_refused, paired, stream
from tests.attacks.wire import CLASSES, classes, observe, pictures, seeded

QUICK = HeadInversion(iterations=150)


@cache
def network(*behind: int) -> nn.Module:
    """Two convolutions with sigmoids and linear layers with ReLUs between, the last of which has a value for each class."""
    layers: list[nn.Module] = [nn.Conv2d(1, 8, 5, 2, 2), nn.Sigmoid(), nn.Conv2d(8, 8, 5, 1, 2), nn.Sigmoid()]
    layers, into = [*layers, nn.Flatten()], 8 * 36
    for width in behind:
        layers += [nn.Linear(into, width), nn.ReLU()]
        into = width
    return seeded(nn.Sequential(*layers, nn.Linear(into, CLASSES)), seed=5)


def sent(model: nn.Module, batch: int) -> tuple[ClientUpdate, Tensor]:
    images = pictures(batch, seed=6)
    return observe(model, images, classes(batch, seed=6)), images


def error(guess: Reconstruction, truth: Tensor) -> float:
    return float(mse(paired(guess, truth)[0], truth).mean())


@pytest.mark.numeric
def test_features_are_exact_and_images_of_them_beat_the_mean_image() -> None:
    for behind in ((), (80,)):
        seen, images = sent(network(*behind), 1)
        read = Read.of(seen)
        found = SpearPlusPlus().factors(read, read.layers[0], seen, stream(), {})
        with torch.no_grad():
            features = nn.Sequential(*list(network(*behind).children())[:5])(normalise(images, seen))
        nearest = torch.cdist(features.double(), found.inputs).min(1).values
        assert float(nearest.max()) < 1e-3 * float(features.norm(dim=1).min())
        guess = QUICK(seen, stream())
        mean_image = pictures(64, seed=9).mean(0).expand_as(images)
        assert error(guess, images) < 0.5 * float(mse(mean_image, images).mean())
        assert guess.diagnostics["relative_loss"] < 0.05
        assert torch.equal(guess.labels, classes(1, seed=6))
    # Fresh noise of rank 1, as the gradient of one example is: nothing but the picture can tell.
    seen, images = sent(network(), 1)
    signal, features = torch.randn(CLASSES, generator=stream(3)), torch.randn(288, generator=stream(4)).abs()
    noise = {name: torch.zeros_like(value) for name, value in seen.update.items()}
    noise |= {"5.weight": -0.1 * torch.outer(signal, features), "5.bias": -0.1 * signal}
    guess = QUICK(replace(seen, update=noise), stream())
    assert error(guess, images) > 0.7 * float(mse(torch.full_like(images, 0.5), images).mean())


def alike_for_all(batch: int, sure: float) -> tuple[Tensor, LayerGradient, Tensor]:
    """Features (B, N), the gradient of a head that sees them, and labels; the larger ``sure``, the less alike are logits."""
    features, labels = torch.rand(batch, 30, generator=stream(1)).double(), torch.arange(batch) + 1
    weight = sure * torch.randn(8, 30, generator=stream(2)).double()
    weight.requires_grad_()
    bias = (0.3 * torch.randn(8, generator=stream(3)).double()).requires_grad_()
    loss = nn.functional.cross_entropy(features @ weight.T + bias, labels)
    return features, LayerGradient(*torch.autograd.grad(loss, [weight, bias])), labels


@pytest.mark.numeric
def test_distinct_classes_tell_features_apart_exactly_where_logits_agree_and_nearly_elsewhere() -> None:
    errors = []
    for sure in (0.0, 0.02, 0.1):
        features, gradient, labels = alike_for_all(4, sure)
        told = class_features(gradient, 4)
        assert torch.equal(told.labels, labels)
        errors.append(float((told.features - features).norm() / (features - features.mean(0)).norm()))
    assert errors[0] < 1e-12
    assert errors[0] < errors[1] < 0.05
    assert errors[1] < errors[2] < 1
    features, gradient, _ = alike_for_all(4, 0.02)
    # Without the leak taken away a row is not the features, but far from them.
    assert float((-4 * gradient.weight[1:5] - features).norm() / (features - features.mean(0)).norm()) > 0.5


def test_where_it_does_not_apply_it_says_so() -> None:
    three = pictures(3, seed=6)
    smooth = nn.Sequential(nn.Conv2d(1, 4, 5), nn.Flatten(), nn.Linear(256, 40), nn.Sigmoid(), nn.Linear(40, CLASSES))
    tower, _ = sent(nn.Sequential(nn.Conv2d(1, CLASSES, 12), nn.Flatten()), 2)
    cases = (
        (observe(network(), three, torch.tensor([1, 1, 1])), "1 classes have a negative gradient, for 3 examples"),
        (sent(smooth, 3)[0], "no ReLU follows layer '2'"),
        (tower, "no linear layer of Sequential sees one vector"),
    )
    assert_refused(QUICK, cases)


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
