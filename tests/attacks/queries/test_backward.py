"""The backward attack against closed forms, through and around a plug-in, and where it starts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from attacks import QueryInversion
from attacks.image_measures import psnr, squared_total_variation
from attacks.queries import inversion
from attacks.queries.backward import BackwardReconstruction
from attacks.queries.base import Query
from attacks.sender import Sender
from defenses.pipeline import Pipeline
from tests.attacks.limits import assert_limits
from tests.attacks.queries.query_wire import MEAN, SHAPE, STD, Negate, pictures, query, seeded

SEARCHES: list[Any] = [
    QueryInversion(iterations=100, total_variation=0.0),
    BackwardReconstruction(iterations=100, learning_rate=0.05, total_variation=0.0),
]


def quadratic_form(height: int, width: int) -> Tensor:
    """Q with x'Qx = TV(x), entry by entry."""
    form = torch.zeros(height * width, height * width, dtype=torch.float64)
    for row in range(height):
        for column in range(width):
            here = row * width + column
            for there, inside, count in (
                (here + width, row + 1 < height, (height - 1) * width),
                (here + 1, column + 1 < width, height * (width - 1)),
            ):
                if inside:
                    form[here, here] += 1 / count
                    form[there, there] += 1 / count
                    form[here, there] -= 1 / count
                    form[there, here] -= 1 / count
    return form


def test_behind_the_identity_it_is_the_solution_of_a_linear_system() -> None:
    """The gradient of |x - z|^2 / n + prior x'Qx + energy |x|^2 / n vanishes."""
    height, width, size = 5, 4, 20
    clean = torch.rand(2, 1, height, width, generator=seeded(1), dtype=torch.float64)
    target = (clean - MEAN[0]) / STD[0]
    server = nn.Sequential(nn.Flatten(), nn.Linear(size, 3)).double()
    seen = Query(target, target, nn.Identity(), server, (1, height, width), MEAN, STD)
    form = quadratic_form(height, width)
    flat = target.flatten(1)
    torch.testing.assert_close(squared_total_variation(target), torch.einsum("bi,ij,bj->b", flat, form, flat))
    assert squared_total_variation(torch.rand(2, 1, 1, 1)).tolist() == [0, 0]
    for prior, energy in ((0.0, 0.0), (0.0, 0.7), (3.0, 0.2)):
        attack = BackwardReconstruction(iterations=600, learning_rate=0.05, total_variation=prior, energy=energy)
        guess = attack(seen, seeded(0))
        assert not guess.failure
        system = (1 + energy) / size * torch.eye(size, dtype=torch.float64) + prior * form
        expected = torch.linalg.solve(system, flat.T / size).T.view_as(target)
        assert ((guess.images - MEAN[0]) / STD[0] - expected).abs().max() < 3e-3


@pytest.mark.long
@pytest.mark.numeric
def test_it_inverts_a_client_half_and_goes_around_or_through_a_plug_in() -> None:
    images, _ = pictures(4, seed=3)
    scores = {}
    for plug_in in ("ignored", "included"):
        for defenses in ((), (Negate(),)):
            attack = BackwardReconstruction(plug_in, iterations=200, learning_rate=0.05, total_variation=0.001)
            guess = attack(query(images, *defenses), seeded(0))
            scores[plug_in, len(defenses)] = float(psnr(guess.images, images).mean())
            if plug_in == "included" or not defenses:
                assert guess.diagnostics["relative_loss"] < 0.2
    # A change of sign is undone exactly; the normalisation's mean, where the search starts, is no better than its failure.
    assert scores["included", 1] == scores["included", 0] == scores["ignored", 0]
    null = float(psnr(torch.full_like(images, MEAN[0]), images).mean())
    assert scores["included", 1] > null + 1.5 > scores["ignored", 1] + 1.5


def test_a_guess_does_not_depend_on_its_company_and_repeats_with_the_generator() -> None:
    seen = query(pictures(3, seed=4)[0])
    one = replace(seen, features=seen.features[1:2], latent=seen.latent[1:2])
    for search in SEARCHES:
        attack = replace(search, iterations=20)
        together, again, other = (attack(seen, seeded(seed)).images for seed in (0, 0, 1))
        assert torch.allclose(attack(one, seeded(0)).images[0], together[1], atol=1e-3)
        assert torch.equal(together, again)
        assert not torch.equal(together, other)


def normalised_query() -> Query:
    """A client half whose groups are single channels, and which sees no border: a constant image has a variance of 0 in each."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(4)
        half = nn.Sequential(nn.Conv2d(1, 8, 3), nn.GroupNorm(8, 8), nn.ReLU()).eval().requires_grad_(False)
        server = nn.Sequential(nn.Flatten(), nn.Linear(8 * 14 * 14, 3)).eval().requires_grad_(False)
    features = Sender(half, Pipeline(), MEAN, STD).features(pictures(3, seed=3)[0])
    return Query(features, features, half, server, SHAPE, MEAN, STD)


@pytest.mark.numeric
def test_behind_a_normalisation_the_search_moves_from_noise_and_not_from_a_constant(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    moved = [attack(normalised_query(), seeded(0)).diagnostics["relative_loss"] for attack in SEARCHES]
    for name in ("START_STD", "SMOOTH_STD"):
        monkeypatch.setattr(inversion, name, 0.0)
    still = [attack(normalised_query(), seeded(0)).diagnostics["relative_loss"] for attack in SEARCHES]
    for ours, theirs in zip(moved, still, strict=True):
        assert ours < 0.2
        assert theirs > 2 * ours


@pytest.mark.numeric
def test_on_noise_it_does_not_find_the_images() -> None:
    images, _ = pictures(4, seed=6)
    seen = query(images)
    noise = torch.randn(seen.features.shape, generator=seeded(7)).abs()
    guess = BackwardReconstruction(iterations=100, learning_rate=0.05)(replace(seen, features=noise), seeded(0))
    # It starts at the normalisation's mean, which is close to that of the pictures.
    assert psnr(guess.images, images).mean() < psnr(torch.full_like(images, MEAN[0]), images).mean() + 1


def test_features_that_do_not_fit_make_a_failed_guess_and_settings_have_limits() -> None:
    seen = query(pictures(2, seed=8)[0])
    guess = BackwardReconstruction(iterations=2)(replace(seen, features=seen.features[:, :2]), seeded(0))
    assert "what was sent has shape (2, 2, 16, 16), expected (2, 4, 16, 16)" in guess.failure
    assert torch.equal(guess.images, torch.full((2, *SHAPE), 0.5))
    assert_limits(
        BackwardReconstruction, plug_in=("both", "ignored"), iterations=(0, 1), learning_rate=(0.0, 0.01),
        total_variation=(-1.0, 0.0), energy=(float("inf"), 0.0),
    )  # fmt: skip
