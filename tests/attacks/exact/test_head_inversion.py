"""Features of a convolutional network's first linear layer, and images that have them."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
import torch
from torch import Tensor, nn

from attacks.exact.class_features import class_features
from attacks.exact.head_inversion import HeadInversion
from attacks.exact.linear_layer import LayerGradient, Read
from attacks.exact.spear import Spear
from attacks.guesses import Reconstruction
from attacks.image_measures import mse
from attacks.normalisation import normalise
from attacks.observations import ClientUpdate
from attacks.scoring.metrics import optimal_assignment
from tests.attacks.wire import CLASSES, classes, observe, pictures, seeded

QUICK = HeadInversion(iterations=150, max_samples=200_000, max_descents=1000)


def stream(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@cache
def network(*behind: int) -> nn.Module:
    """Two convolutions with sigmoids and linear layers with ReLUs between, the last of which has a value for each class."""
    layers: list[nn.Module] = [
        nn.Conv2d(1, 8, 5, 2, 2),
        nn.Sigmoid(),
        nn.Conv2d(8, 8, 5, 1, 2),
        nn.Sigmoid(),
        nn.Flatten(),
    ]
    into = 8 * 36
    for width in behind:
        layers += [nn.Linear(into, width), nn.ReLU()]
        into = width
    return seeded(nn.Sequential(*layers, nn.Linear(into, CLASSES)), seed=5)


def sent(model: nn.Module, batch: int) -> tuple[ClientUpdate, Tensor]:
    images = pictures(batch, seed=6)
    return observe(model, images, classes(batch, seed=6)), images


def error(guess: Reconstruction, truth: Tensor) -> float:
    assert not guess.failure, guess.failure
    own, theirs = optimal_assignment(guess.images, truth)
    return float(mse(guess.images[own], truth[theirs]).mean())


@pytest.mark.parametrize(("behind", "batch"), [((), 1), ((80,), 1)])
def test_features_are_exact(behind: tuple[int, ...], batch: int) -> None:
    seen, images = sent(network(*behind), batch)
    read = Read.of(seen)
    numbers: dict[str, float] = {}
    found = Spear().factors(read.of_layer(read.layers[0]), read.layers[0], batch, stream(), numbers)
    with torch.no_grad():
        features = nn.Sequential(*list(network(*behind).children())[:5])(normalise(images, seen))
    nearest = torch.cdist(features.double(), found.inputs).min(1).values
    assert float(nearest.max()) < 1e-3 * float(features.norm(dim=1).min())


@pytest.mark.parametrize(("behind", "batch"), [((), 1), ((80,), 1)])
def test_images_of_the_features_beat_the_mean_image(behind: tuple[int, ...], batch: int) -> None:
    seen, images = sent(network(*behind), batch)
    guess = QUICK(seen, stream())
    mean = pictures(64, seed=9).mean(0)
    assert error(guess, images) < 0.25 * float(mse(mean.expand_as(images), images).mean())
    assert guess.diagnostics["relative_loss"] < 0.05
    own, theirs = optimal_assignment(guess.images, images)
    assert torch.equal(guess.labels[own], classes(batch, seed=6)[theirs])


def alike_for_all(batch: int, sure: float) -> tuple[Tensor, LayerGradient, Tensor]:
    """Features (B, N), the gradient of a head that sees them, and labels; the larger ``sure``, the less alike are logits."""
    features, labels = torch.rand(batch, 30, generator=stream(1)).double(), torch.arange(batch) + 1
    weight = sure * torch.randn(8, 30, generator=stream(2)).double()
    weight.requires_grad_()
    bias = torch.randn(8, generator=stream(3)).double().requires_grad_()
    loss = nn.functional.cross_entropy(features @ weight.T + bias, labels)
    return features, LayerGradient(*torch.autograd.grad(loss, [weight, bias])), labels


def test_distinct_classes_tell_features_apart_exactly_where_logits_agree_and_nearly_elsewhere() -> None:
    errors = []
    for sure in (0.0, 0.02, 0.3):
        features, gradient, labels = alike_for_all(4, sure)
        told = class_features(gradient, 4)
        assert torch.equal(told.labels, labels)
        errors.append(float((told.features - features).norm() / (features - features.mean(0)).norm()))
    assert errors[0] < 1e-12
    assert errors[0] < errors[1] < 0.02 < errors[2] < 1
    features, gradient, _ = alike_for_all(4, 0.02)
    # Without the leak taken away a row is not the features, but far from them.
    assert float((-4 * gradient.weight[1:5] - features).norm() / (features - features.mean(0)).norm()) > 0.5


def linear_head() -> nn.Module:
    """The convolutions and a head for 20 classes, with weights as torch initialises it."""
    head = nn.Linear(288, 20)
    with torch.no_grad():
        head.weight.uniform_(-0.05, 0.05, generator=stream(7))
        head.bias.zero_()
    return nn.Sequential(*list(network().children())[:-1], head)


@pytest.mark.long
def test_a_batch_of_distinct_classes_is_read_from_the_head() -> None:
    images, labels = pictures(3, seed=6), torch.tensor([4, 0, 2])
    model = linear_head()
    guess = QUICK(observe(model, images, labels), stream())
    own, theirs = optimal_assignment(guess.images, images)
    assert torch.equal(guess.labels[own], labels[theirs])
    mean = pictures(64, seed=9).mean(0)
    assert error(guess, images) < 0.5 * float(mse(mean.expand_as(images), images).mean())
    noise = {n: torch.randn(u.shape, generator=stream(5)) for n, u in observe(model, images, labels).update.items()}
    assert (
        "without a gap there, noise" in QUICK(replace(observe(model, images, labels), update=noise), stream()).failure
    )


def test_fresh_noise_of_one_example_gives_no_picture() -> None:
    """Rank 1 as the gradient of one example has, so that nothing but the picture can tell."""
    seen, images = sent(network(), 1)
    signal, features = torch.randn(CLASSES, generator=stream(3)), torch.randn(288, generator=stream(4)).abs()
    noise = {name: torch.zeros_like(value) for name, value in seen.update.items()}
    noise |= {"5.weight": -0.1 * torch.outer(signal, features), "5.bias": -0.1 * signal}
    guess = QUICK(replace(seen, update=noise), stream())
    assert error(guess, images) > 0.7 * float(mse(torch.full_like(images, 0.5), images).mean())


def test_a_batch_whose_features_hardly_differ_ends_in_a_failure_that_says_so() -> None:
    """Features of a random network are nearly those of any image: too few neurons are on for one example and off for another."""
    seen, _ = sent(network(80), 3)
    assert "of 3 examples in" in replace(QUICK, max_samples=20_000, max_descents=200)(seen, stream()).failure


def test_where_it_does_not_apply_it_says_so() -> None:
    seen, _ = sent(network(), 3)
    assert "1 classes have a negative gradient, for 3 examples" in QUICK(seen, stream()).failure
    pair = observe(linear_head(), pictures(3, seed=6), torch.tensor([4, 0, 4]))
    assert "2 classes have a negative gradient, for 3 examples" in QUICK(pair, stream()).failure
    full = observe(network(), pictures(CLASSES, seed=6), torch.arange(CLASSES))
    assert "a batch of 5 fills the rank" in QUICK(full, stream()).failure
    smooth = nn.Sequential(nn.Conv2d(1, 4, 5), nn.Flatten(), nn.Linear(256, 40), nn.Sigmoid(), nn.Linear(40, CLASSES))
    seen, _ = sent(smooth, 3)
    assert "no ReLU follows layer '2'" in QUICK(seen, stream()).failure
    tower = nn.Sequential(nn.Conv2d(1, CLASSES, 12), nn.Flatten())
    seen, _ = sent(tower, 2)
    assert "no linear layer of Sequential sees one vector" in QUICK(seen, stream()).failure
    noisy = {n: u + torch.randn(u.shape, generator=stream(5)) for n, u in seen.update.items()}
    assert QUICK(replace(seen, update=noisy), stream()).failure.startswith("does not apply")


def test_configuration() -> None:
    assert repr(HeadInversion(iterations=5)) == "HeadInversion(iterations=5)"
    for values in ({"iterations": 0}, {"learning_rate": 0.0}, {"total_variation": -1.0}, {"max_samples": 0}):
        with pytest.raises(ValueError, match=next(iter(values))):
            HeadInversion(**values)  # type: ignore[arg-type]
