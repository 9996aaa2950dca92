"""The Cocktail Party Attack against another algorithm for independent components, closed forms, and updates that tell nothing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor, nn

from attacks.exact.cocktail_party import CocktailParty
from attacks.exact.linear_layer import LowRank, Read, low_rank
from attacks.guesses import Reconstruction
from attacks.image_measures import mse, psnr
from attacks.normalisation import normalise
from attacks.observations import ClientUpdate
from attacks.scoring.metrics import optimal_assignment
from tests.attacks.wire import CLASSES, classes, drawings, linear_net, observe, pictures, relu_net, seeded

QUICK = CocktailParty(restarts=1, iterations=300)
SIDE = 20


def stream(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def network(width: int, activation: nn.Module, *, bias: bool = True) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(2)
        first = nn.Linear(SIDE * SIDE, width, bias=bias)
        return nn.Sequential(nn.Flatten(), first, activation, nn.Linear(width, CLASSES))


def in_single_precision(seen: ClientUpdate) -> ClientUpdate:
    """What a client really sends: the difference of two models."""
    before = dict(seen.model.named_parameters())
    return replace(seen, update={n: ((before[n] + d) - before[n]).detach() for n, d in seen.update.items()})


def sent(batch: int, activation: nn.Module | None = None, *, bias: bool = True) -> ClientUpdate:
    model = network(100, activation or nn.ReLU(), bias=bias)
    return in_single_precision(observe(model, drawings(batch), classes(batch)))


def decibels(guess: Reconstruction, truth: Tensor) -> Tensor:
    assert not guess.failure, guess.failure
    own, theirs = optimal_assignment(guess.images, truth)
    return psnr(guess.images[own], truth[theirs]).clamp_max(100)


def as_parts(mixtures: np.ndarray) -> LowRank:
    return LowRank(torch.eye(len(mixtures), dtype=torch.float64), torch.from_numpy(mixtures), 0.0)


def one_by_one(mixtures: np.ndarray, seed: int) -> np.ndarray:
    """FastICA by deflation in numpy, with the kurtosis in place of log cosh: the slow way, one component after the other."""
    centred = mixtures - mixtures.mean(1, keepdims=True)
    values, vectors = np.linalg.eigh(np.cov(centred))
    white = (vectors / np.sqrt(values)).T @ centred
    draw, rows = np.random.default_rng(seed), np.zeros((0, len(white)))
    for _ in range(len(white)):
        row = draw.standard_normal(len(white))
        for _ in range(100):
            row = (white * (row @ white) ** 3).mean(1) - 3 * row
            row -= rows.T @ (rows @ row)
            row /= np.linalg.norm(row)
        rows = np.vstack([rows, row])
    return np.asarray(rows @ white)


def alike(ours: np.ndarray, theirs: np.ndarray) -> np.ndarray:
    """Absolute correlations of the components that belong together."""
    table = np.abs(np.corrcoef(ours, theirs)[: len(ours), len(ours) :])
    pairs = linear_sum_assignment(-table)
    return np.asarray(table[pairs])


def test_components_are_those_of_another_algorithm() -> None:
    draw = np.random.default_rng(1)
    sources = np.concatenate([draw.laplace(size=(4, 8_000)), draw.uniform(-1, 1, (2, 8_000))])
    mixtures = draw.standard_normal((6, 6)) @ sources
    attack = CocktailParty(samples="values", total_variation=0.0, relaxation=1.0, iterations=200, restarts=1)
    found = attack.unmixing(as_parts(mixtures), None, stream(), {}).numpy() @ mixtures
    assert alike(found, one_by_one(mixtures, 2)).min() > 0.99
    assert alike(found, sources).min() > 0.99
    assert alike(mixtures, sources).min() < 0.9  # mixtures themselves are not


def test_of_gaussian_sources_nothing_is_told_apart() -> None:
    """Theory: rotations of independent normal sources have the same distribution."""
    draw = np.random.default_rng(3)
    sources = draw.standard_normal((6, 8_000))
    attack = CocktailParty(samples="values", total_variation=0.0, iterations=200, restarts=1)
    mixtures = draw.standard_normal((6, 6)) @ sources
    found = attack.unmixing(as_parts(mixtures), None, stream(), {}).numpy() @ mixtures
    assert alike(found, sources).min() < 0.9


@pytest.mark.parametrize("activation", [nn.ReLU(), nn.Sigmoid()])
@pytest.mark.parametrize("batch", [4, 24])
def test_batches_are_told_apart_whatever_the_activation(activation: nn.Module, batch: int) -> None:
    seen = sent(batch, activation)
    guess = QUICK(seen, stream())
    found = decibels(guess, drawings(batch))
    mean = psnr(drawings(64, seed=9).mean(0).expand(batch, -1, -1, -1), drawings(batch)).mean()
    assert (found > 30).double().mean() > 0.8
    assert found.mean() > mean + 15
    assert guess.diagnostics["rank"] == batch
    own, theirs = optimal_assignment(guess.images, drawings(batch))
    right = guess.labels[own] == classes(batch)[theirs]
    assert right[found > 30].double().mean() > 0.9


@pytest.mark.long
def test_values_are_the_weaker_samples() -> None:
    seen = sent(16)
    strong, weak = (
        decibels(replace(QUICK, samples=name)(seen, stream()), drawings(16)) for name in ("differences", "values")
    )
    assert strong.mean() > weak.mean() + 5


@pytest.mark.long
def test_one_example_is_a_quotient() -> None:
    for model in (linear_net(), relu_net(12)):
        guess = QUICK(observe(model, pictures(1, seed=4), classes(1, seed=4)), stream())
        assert float(mse(guess.images, pictures(1, seed=4)).max()) < 1e-8
        assert torch.equal(guess.labels, classes(1, seed=4))


def test_without_a_bias_sign_and_contrast_follow_from_the_range() -> None:
    guess = QUICK(sent(8, bias=False), stream())
    # The brightest rectangle becomes white: pictures are right up to their brightness.
    own, theirs = optimal_assignment(guess.images, drawings(8))
    pairs = zip(guess.images[own].flatten(1), drawings(8)[theirs].flatten(1), strict=True)
    correlations = torch.stack([torch.corrcoef(torch.stack(pair))[0, 1] for pair in pairs])
    assert correlations.median() > 0.95


def test_fresh_noise_gives_no_picture() -> None:
    seen = sent(6)
    noise = {name: torch.randn(value.shape, generator=stream(7)) for name, value in seen.update.items()}
    assert "without a gap there, noise" in QUICK(replace(seen, update=noise), stream()).failure
    loud = {name: value + 1e-3 * noise[name] for name, value in seen.update.items()}
    assert "examples stand out from noise" in QUICK(replace(seen, update=loud), stream()).failure
    left, right = torch.randn(100, 6, generator=stream(8)), torch.randn(6, SIDE * SIDE, generator=stream(9))
    update = {**seen.update, "1.weight": left @ right, "1.bias": left.sum(1)}
    guess = QUICK(replace(seen, update=update), stream())
    own, theirs = optimal_assignment(guess.images, drawings(6))
    grey = mse(torch.full((6, 1, SIDE, SIDE), 0.5), drawings(6)).mean()
    assert mse(guess.images[own], drawings(6)[theirs]).mean() > 0.8 * grey


def features_told_apart(shift: float, batch: int = 6) -> tuple[np.ndarray, Reconstruction]:
    """Likeness of the features found and the true ones, and the guess; the lower ``shift`` is, the more features are zero."""
    first = nn.Conv2d(1, 8, 3, 1, 1)
    below = nn.Sequential(first, nn.ReLU(), nn.AvgPool2d(2), nn.Flatten())
    model = seeded(
        nn.Sequential(*below, nn.Linear(8 * SIDE * SIDE // 4, 40), nn.ReLU(), nn.Linear(40, CLASSES)), 0.3, seed=5
    )
    nn.init.constant_(first.bias, shift)  # type: ignore[arg-type]
    seen = observe(model, drawings(batch), classes(batch))
    with torch.no_grad():
        features = below(normalise(drawings(batch), seen)).double().numpy()
    read = Read.of(seen)
    parts = low_rank(read.of_layer(read.layers[0]), batch)
    found = QUICK.unmixing(parts, None, stream(), {}) @ parts.right
    return alike(found.numpy(), features), QUICK(seen, stream())


@pytest.mark.long
def test_sparse_features_of_a_convolution_are_told_apart_and_others_are_not() -> None:
    likeness, guess = features_told_apart(-0.5)
    assert (likeness > 0.9).sum() >= 5
    assert not guess.failure
    assert guess.images.shape == (6, 1, SIDE, SIDE)
    likeness, _ = features_told_apart(0.0)
    assert (likeness > 0.9).sum() <= 2


def flat() -> ClientUpdate:
    images = torch.cat([drawings(2), torch.full((1, 1, SIDE, SIDE), 0.7)])
    return observe(network(100, nn.ReLU()), images, classes(3))


@pytest.mark.parametrize(
    ("seen", "why"),
    [
        (observe(nn.Sequential(nn.Conv2d(1, CLASSES, SIDE), nn.Flatten()), drawings(2), classes(2)), "no linear layer"),
        (observe(network(6, nn.ReLU()), drawings(8), classes(8)), "a batch of 8 fills the rank"),
        (replace(sent(4), local_steps=3), "the update has 3 local steps"),
        (flat(), "an example is constant"),
    ],
)
def test_where_it_does_not_apply_it_says_so(seen: ClientUpdate, why: str) -> None:
    guess = QUICK(seen, stream())
    assert guess.failure.startswith("does not apply")
    assert why in guess.failure
    assert torch.equal(guess.images, torch.full_like(guess.images, 0.5))


def test_configuration() -> None:
    assert repr(CocktailParty(restarts=5)) == "CocktailParty(restarts=5)"
    wrong: list[dict[str, Any]] = [
        {"restarts": 0},
        {"samples": "all"},
        {"relaxation": 0.0},
        {"temperature": -1.0},
        {"negentropy": -1.0},
    ]
    for values in wrong:
        with pytest.raises(ValueError, match=next(iter(values))):
            CocktailParty(**values)
