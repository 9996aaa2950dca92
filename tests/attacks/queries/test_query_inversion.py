"""Inversion of queries: exact where the client half can be undone, through a defence that was fitted, and at chance on noise."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from attacks import QueryInversion
from attacks.image_measures import mse, psnr
from attacks.queries.base import Query
from attacks.sender import Sender
from defenses.pipeline import Pipeline
from defenses.spec import parse
from tests.attacks.limits import assert_limits
from tests.attacks.queries.query_wire import seeded
from tests.attacks.wire import pictures as smooth

MEAN, STD = (0.4, 0.5, 0.6), (0.2, 0.25, 0.3)
SHAPE = (3, 12, 12)


def pictures(count: int, seed: int = 0) -> Tensor:
    return smooth(count, channels=3, seed=seed)


def client_half() -> nn.Module:
    """Maps from which each pixel can be worked out: an orthogonal mixture of the four neighbours' colours, and no activation."""
    half = nn.Conv2d(3, 12, 2, stride=2, bias=False)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        nn.init.orthogonal_(half.weight)
    return half.eval().requires_grad_(False)


def query(images: Tensor, defense: str = "") -> Query:
    half, pipeline = client_half(), parse(defense)
    with torch.random.fork_rng():
        torch.manual_seed(1)
        server = nn.Sequential(nn.Flatten(), nn.Linear(12 * 6 * 6, 5)).eval().requires_grad_(False)
    latent = Sender(half, pipeline, MEAN, STD).latent(images, ("client",))
    return Query(pipeline.decode_features(latent), latent, half, server, SHAPE, MEAN, STD, pipeline)


def test_an_invertible_half_is_undone_as_the_closed_form_undoes_it() -> None:
    """The transpose of an orthogonal map is its inverse."""
    images = pictures(3)
    seen = query(images)
    normalised = nn.functional.conv_transpose2d(seen.latent, seen.client_model.weight, stride=2)  # type: ignore[arg-type]
    solved = normalised * torch.tensor(STD).view(3, 1, 1) + torch.tensor(MEAN).view(3, 1, 1)
    guess = QueryInversion(iterations=300, total_variation=0.0)(seen, seeded(0))
    torch.testing.assert_close(solved, images, atol=1e-5, rtol=0)
    torch.testing.assert_close(guess.images, solved, atol=3e-3, rtol=0)
    assert guess.diagnostics["relative_loss"] < 1e-4
    assert torch.equal(guess.labels, seen.server_model(seen.features).argmax(1)), "the answers that the server gave"


@pytest.mark.long
@pytest.mark.numeric
def test_a_prior_helps_against_noise_and_clipped_features_are_matched_as_clipped() -> None:
    """FeatureDP's noise is left out of what is expected, its clipping is not: else images would lose their contrast."""
    images = pictures(4)
    seen = query(images, "FeatureNoise(std=0.5)")
    plain, smoothed = (
        psnr(QueryInversion(total_variation=tv)(seen, seeded(0)).images, images).mean() for tv in (0.0, 0.3)
    )
    assert smoothed > plain + 0.5
    seen = query(images, "FeatureDP(clip=4.0, noise_multiplier=0.001)")
    attack = QueryInversion(iterations=500, total_variation=0.0)
    through, around = (attack(one, seeded(0)).images for one in (seen, replace(seen, pipeline=Pipeline())))
    assert mse(through, images).mean() < 0.7 * mse(around, images).mean()


@pytest.mark.numeric
def test_on_features_of_noise_it_is_no_better_than_grey() -> None:
    images = pictures(8)
    seen = query(images)
    noise = torch.randn(seen.latent.shape, generator=seeded(1))
    guess = QueryInversion()(replace(seen, features=noise, latent=noise), seeded(0))
    assert mse(guess.images, images).mean() > 0.85 * mse(torch.full_like(images, 0.5), images).mean()


def test_an_image_depends_on_its_own_query_and_nothing_is_changed() -> None:
    seen, attack = query(pictures(2)), QueryInversion(iterations=20)
    before = [seen.latent.clone(), *(weight.clone() for weight in seen.client_model.parameters())]
    guesses = attack.attack_many([seen, query(pictures(2, seed=5))], [seeded(0), seeded(1)])
    assert torch.equal(guesses[0].images, attack(seen, seeded(0)).images)
    assert all(torch.equal(*pair) for pair in zip(before, [seen.latent, *seen.client_model.parameters()], strict=True))
    for latent, why in (
        (torch.full((2, 12, 6, 6), torch.nan), "NaN or infinite"),
        (torch.zeros(2, 12, 5, 6), "expected (2, 12, 6, 6)"),
    ):
        guess = attack(replace(seen, features=latent, latent=latent), seeded(0))
        assert why in guess.failure
        assert torch.equal(guess.images, torch.full((2, *SHAPE), 0.5))
        assert guess.labels.tolist() == [-1, -1]
    assert_limits(QueryInversion, iterations=(0, 1), learning_rate=(0.0, 0.1), total_variation=(-1.0, 0.0))
