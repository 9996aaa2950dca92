"""Inversion of queries and the backward attack against closed forms, through and around a defence, and where they start."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from attacks import QueryInversion
from attacks.image_measures import mse, psnr, squared_total_variation
from attacks.queries.backward import BackwardReconstruction
from attacks.queries.base import Query
from attacks.sender import Sender
from defenses.pipeline import Pipeline
from defenses.spec import parse
from tests.attacks.queries.query_wire import MEAN, SHAPE, STD, Negate, pictures, query, seeded
from tests.attacks.wire import pictures as smooth

COLOUR_MEAN, COLOUR_STD = (0.4, 0.5, 0.6), (0.2, 0.25, 0.3)
COLOUR_SHAPE = (3, 12, 12)


def photos(count: int, seed: int = 0) -> Tensor:
    return smooth(count, channels=3, seed=seed)


def undoable_query(images: Tensor, defense: str = "") -> Query:
    """Maps from which each pixel can be worked out: an orthogonal mixture of the four neighbours' colours, and no activation."""
    half, pipeline = nn.Conv2d(3, 12, 2, stride=2, bias=False).eval().requires_grad_(False), parse(defense)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        nn.init.orthogonal_(half.weight)
        server = nn.Sequential(nn.Flatten(), nn.Linear(12 * 6 * 6, 5)).eval().requires_grad_(False)
    latent = Sender(half, pipeline, COLOUR_MEAN, COLOUR_STD).latent(images, ("client",))
    features = pipeline.decode_features(latent)
    return Query(features, latent, half, server, COLOUR_SHAPE, COLOUR_MEAN, COLOUR_STD, pipeline)


def test_an_invertible_half_is_undone_as_the_closed_form_undoes_it() -> None:
    """The transpose of an orthogonal map is its inverse."""
    images = photos(3)
    seen = undoable_query(images)
    normalised = nn.functional.conv_transpose2d(seen.latent, seen.client_model.weight, stride=2)  # type: ignore[arg-type]
    solved = normalised * torch.tensor(COLOUR_STD).view(3, 1, 1) + torch.tensor(COLOUR_MEAN).view(3, 1, 1)
    guess = QueryInversion(iterations=300, total_variation=0.0)(seen, seeded(0))
    torch.testing.assert_close(solved, images, atol=1e-5, rtol=0)
    torch.testing.assert_close(guess.images, solved, atol=3e-3, rtol=0)
    assert guess.diagnostics["relative_loss"] < 1e-4
    assert torch.equal(guess.labels, seen.server_model(seen.features).argmax(1)), "the answers that the server gave"


@pytest.mark.long
@pytest.mark.numeric
def test_a_prior_helps_against_noise_and_clipped_features_are_matched_as_clipped() -> None:
    """FeatureDP's noise is left out of what is expected, its clipping is not: else images would lose their contrast."""
    images = photos(4)
    seen = undoable_query(images, "FeatureNoise(std=0.5)")
    guesses = [QueryInversion(total_variation=prior)(seen, seeded(0)).images for prior in (0.0, 0.3)]
    plain, smoothed = (psnr(guess, images).mean() for guess in guesses)
    assert smoothed > plain + 0.5
    seen = undoable_query(images, "FeatureDP(clip=4.0, noise_multiplier=0.001)")
    attack = QueryInversion(iterations=500, total_variation=0.0)
    through, around = (attack(one, seeded(0)).images for one in (seen, replace(seen, pipeline=Pipeline())))
    assert mse(through, images).mean() < 0.7 * mse(around, images).mean()


SEARCHES: list[Any] = [
    QueryInversion(iterations=100, total_variation=0.0),
    BackwardReconstruction(iterations=100, learning_rate=0.05, total_variation=0.0),
]


def quadratic_form(height: int, width: int) -> Tensor:
    """Q with x'Qx = TV(x): mean squared differences of neighbours, down and across."""
    down = np.kron(np.diff(np.eye(height), axis=0), np.eye(width))
    across = np.kron(np.eye(height), np.diff(np.eye(width), axis=0))
    return torch.from_numpy(down.T @ down / len(down) + across.T @ across / len(across))


def test_behind_the_identity_it_is_the_solution_of_a_linear_system() -> None:
    """The gradient of |x - z|^2 / n + prior x'Qx vanishes."""
    height, width, size = 5, 4, 20
    clean = torch.rand(2, 1, height, width, generator=seeded(1), dtype=torch.float64)
    target = (clean - MEAN[0]) / STD[0]
    server = nn.Sequential(nn.Flatten(), nn.Linear(size, 3)).double()
    seen = Query(target, target, nn.Identity(), server, (1, height, width), MEAN, STD)
    form = quadratic_form(height, width)
    flat = target.flatten(1)
    torch.testing.assert_close(squared_total_variation(target), torch.einsum("bi,ij,bj->b", flat, form, flat))
    assert squared_total_variation(torch.rand(2, 1, 1, 1)).tolist() == [0, 0]
    for prior in (0.0, 3.0):
        attack = BackwardReconstruction(iterations=500, learning_rate=0.05, total_variation=prior)
        guess = attack(seen, seeded(0))
        assert not guess.failure
        system = 1 / size * torch.eye(size, dtype=torch.float64) + prior * form
        expected = torch.linalg.solve(system, flat.T / size).T.view_as(target)
        assert ((guess.images - MEAN[0]) / STD[0] - expected).abs().max() < 3e-3


def test_the_backward_attack_goes_around_or_through_a_plug_in() -> None:
    images, _ = pictures(4, seed=3)
    found = {}
    for plug_in in ("ignored", "included"):
        for defenses in ((), (Negate(),)):
            attack = BackwardReconstruction(plug_in, iterations=20, learning_rate=0.05, total_variation=0.001)
            found[plug_in, len(defenses)] = attack(query(images, *defenses), seeded(0)).images
    # A change of sign is undone exactly.
    assert torch.equal(found["included", 1], found["included", 0])
    assert torch.equal(found["ignored", 0], found["included", 0])
    assert mse(found["included", 1], images).mean() < mse(found["ignored", 1], images).mean()


def normalised_query() -> Query:
    """A client half whose groups are single channels, and which sees no border: a constant image has a variance of 0 in each."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(4)
        half = nn.Sequential(nn.Conv2d(1, 8, 3), nn.GroupNorm(8, 8), nn.ReLU()).eval().requires_grad_(False)
        server = nn.Sequential(nn.Flatten(), nn.Linear(8 * 14 * 14, 3)).eval().requires_grad_(False)
    features = Sender(half, Pipeline(), MEAN, STD).features(pictures(3, seed=3)[0])
    return Query(features, features, half, server, SHAPE, MEAN, STD)


@pytest.mark.numeric
def test_behind_a_normalisation_the_search_moves_from_noise_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    moved = [attack(normalised_query(), seeded(0)).diagnostics["relative_loss"] for attack in SEARCHES]
    for name in ("backward.START_STD", "query_inversion.SMOOTH_STD"):
        monkeypatch.setattr(f"attacks.queries.{name}", 0.0)
    still = [attack(normalised_query(), seeded(0)).diagnostics["relative_loss"] for attack in SEARCHES]
    for ours, theirs in zip(moved, still, strict=True):
        assert ours < 0.2
        assert theirs > 2 * ours
