"""The Cocktail Party Attack on sources and batches that are known, and on updates that tell nothing."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.optimize import linear_sum_assignment
from torch import nn

from attacks.exact.cocktail_party import CocktailParty
from attacks.exact.linear_layer import LowRank
from attacks.image_measures import mse, psnr
from attacks.observations import ClientUpdate
from tests.attacks.exact.solving import assert_refused, in_single_precision, noise_for, paired, stream
from tests.attacks.wire import CLASSES, classes, drawings, observe

QUICK = CocktailParty(restarts=1, iterations=300)
SIDE = 20


def network(width: int, activation: nn.Module, *, bias: bool = True) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(2)
        first = nn.Linear(SIDE * SIDE, width, bias=bias)
        return nn.Sequential(nn.Flatten(), first, activation, nn.Linear(width, CLASSES))


def sent(batch: int, activation: nn.Module | None = None, *, bias: bool = True) -> ClientUpdate:
    model = network(100, activation or nn.ReLU(), bias=bias)
    return in_single_precision(observe(model, drawings(batch), classes(batch)))


def alike(ours: np.ndarray, theirs: np.ndarray) -> np.ndarray:
    """Absolute correlations of the components that belong together."""
    table = np.abs(np.corrcoef(ours, theirs)[: len(ours), len(ours) :])
    pairs = linear_sum_assignment(-table)
    return np.asarray(table[pairs])


def unmixed(mixtures: np.ndarray, **changes: float) -> np.ndarray:
    attack = CocktailParty(total_variation=0.0, iterations=200, restarts=1, **changes)  # type: ignore[arg-type]
    parts = LowRank(torch.eye(len(mixtures), dtype=torch.float64), torch.from_numpy(mixtures), 0.0)
    return np.asarray(attack.unmixing(parts, (mixtures.shape[1], 1, 1), stream(), {}).numpy() @ mixtures)


@pytest.mark.numeric
def test_independent_sources_are_told_apart_and_gaussian_ones_are_not() -> None:
    """Rotations of independent normal sources have the same distribution."""
    draw = np.random.default_rng(1)
    sources = np.concatenate([draw.laplace(size=(4, 8_000)), draw.uniform(-1, 1, (2, 8_000))])
    # Well conditioned, whatever the seed.
    turn, _ = np.linalg.qr(draw.standard_normal((6, 6)))
    mixtures = turn * np.linspace(1, 3, 6) @ sources
    found = unmixed(mixtures)
    assert alike(found, sources).min() > 0.99
    assert alike(mixtures, sources).min() < 0.9  # mixtures themselves are not
    normal = draw.standard_normal((6, 8_000))
    assert alike(unmixed(turn @ normal), normal).min() < 0.95


@pytest.mark.numeric
def test_batches_are_told_apart_whatever_the_activation() -> None:
    for batch, activation in ((24, nn.ReLU()), (4, nn.Sigmoid())):
        guess, truth = QUICK(sent(batch, activation), stream()), drawings(batch)
        found = psnr(paired(guess, truth)[0], truth).clamp_max(100)
        mean = psnr(drawings(64, seed=9).mean(0).expand(batch, -1, -1, -1), truth).mean()
        assert (found > 30).double().mean() > 0.7
        assert found.mean() > mean + 12
        assert guess.diagnostics["rank"] == batch
        right = paired(guess, truth)[1] == classes(batch)
        assert right[found > 30].double().mean() > 0.9
    # Without a bias the brightest rectangle becomes white: pictures are right up to their brightness.
    images, _ = paired(QUICK(sent(8, bias=False), stream()), drawings(8))
    pairs = zip(images.flatten(1), drawings(8).flatten(1), strict=True)
    assert torch.stack([torch.corrcoef(torch.stack(pair))[0, 1] for pair in pairs]).median() > 0.95


@pytest.mark.numeric
def test_noise_that_looks_like_a_batch_gives_no_picture() -> None:
    seen = sent(6)
    left, right = torch.randn(100, 6, generator=stream(8)), torch.randn(6, SIDE * SIDE, generator=stream(9))
    update = {**seen.update, "1.weight": left @ right, "1.bias": left.sum(1)}
    images, _ = paired(QUICK(replace(seen, update=update), stream()), drawings(6))
    grey = mse(torch.full((6, 1, SIDE, SIDE), 0.5), drawings(6)).mean()
    assert mse(images, drawings(6)).mean() > 0.7 * grey


def test_where_it_does_not_apply_it_says_so() -> None:
    tower = nn.Sequential(nn.Conv2d(1, CLASSES, SIDE), nn.Flatten())
    flat = torch.cat([drawings(2), torch.full((1, 1, SIDE, SIDE), 0.7)])
    noise = noise_for(sent(6))
    loud = {name: value + 1e-3 * noise[name] for name, value in sent(6).update.items()}
    cases = (
        (observe(tower, drawings(2), classes(2)), "no linear layer"),
        (replace(sent(4), local_steps=3), "the update has 3 local steps"),
        (replace(sent(6), update=loud), "examples stand out from noise"),
        (observe(network(100, nn.ReLU()), flat, classes(3)), "an example is constant"),
    )
    assert_refused(QUICK, cases)
