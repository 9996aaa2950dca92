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

MEAN, STD = (0.4, 0.5, 0.6), (0.2, 0.25, 0.3)
SHAPE = (3, 12, 12)


def pictures(count: int, seed: int = 0) -> Tensor:
    """Smooth images in [0, 1]."""
    coarse = torch.rand(count, 3, 4, 4, generator=torch.Generator().manual_seed(seed))
    return nn.functional.interpolate(coarse, SHAPE[1:], mode="bilinear")


def client_half(seed: int = 0) -> nn.Module:
    """Maps from which each pixel can be worked out: an orthogonal mixture of the four neighbours' colours, and no activation."""
    half = nn.Conv2d(3, 12, 2, stride=2, bias=False)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        nn.init.orthogonal_(half.weight)
    return half.eval().requires_grad_(False)


def server_half() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(1)
        return nn.Sequential(nn.Flatten(), nn.Linear(12 * 6 * 6, 5)).eval().requires_grad_(False)


def query(images: Tensor, pipeline: Pipeline = Pipeline(), half: nn.Module | None = None) -> Query:  # noqa: B008 (it is frozen)
    half = half or client_half()
    latent = Sender(half, pipeline, MEAN, STD).latent(images, ("client",))
    features = pipeline.decode_features(latent)
    return Query(features, latent, half, server_half(), SHAPE, MEAN, STD, pipeline)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def solved(seen: Query) -> Tensor:
    """The closed form: the transpose of an orthogonal map is its inverse."""
    half = seen.client_model
    normalised = nn.functional.conv_transpose2d(seen.latent, half.weight, stride=2)  # type: ignore[arg-type]
    return normalised * torch.tensor(STD).view(3, 1, 1) + torch.tensor(MEAN).view(3, 1, 1)


def test_an_invertible_half_is_undone_as_the_closed_form_undoes_it() -> None:
    images = pictures(3)
    seen = query(images)
    guess = QueryInversion(iterations=300, total_variation=0.0)(seen, seeded())
    torch.testing.assert_close(solved(seen), images, atol=1e-5, rtol=0)
    torch.testing.assert_close(guess.images, solved(seen), atol=1e-3, rtol=0)
    assert guess.diagnostics["relative_loss"] < 1e-5
    assert torch.equal(guess.labels, server_half()(seen.features).argmax(1)), "the answers that the server gave"


@pytest.mark.long
def test_the_prior_helps_against_noise_on_smooth_images() -> None:
    images = pictures(4)
    seen = query(images, parse("FeatureNoise(std=0.5)"))
    plain, smooth = (
        psnr(QueryInversion(total_variation=tv)(seen, seeded()).images, images).mean() for tv in (0.0, 0.3)
    )
    assert smooth > plain + 1


@pytest.mark.long
def test_clipped_features_are_matched_as_clipped() -> None:
    """FeatureDP's noise is left out of what is expected, its clipping is not: else images would lose their contrast."""
    images = pictures(2)
    seen = query(images, parse("FeatureDP(clip=4.0, noise_multiplier=0.001)"))
    through = QueryInversion(iterations=500, total_variation=0.0)(seen, seeded())
    around = QueryInversion(iterations=500, total_variation=0.0)(replace(seen, pipeline=Pipeline()), seeded())
    assert mse(through.images, images).mean() < 0.5 * mse(around.images, images).mean()


def test_on_features_of_noise_it_is_no_better_than_grey() -> None:
    images = pictures(8)
    seen = query(images)
    noise = torch.randn(seen.latent.shape, generator=seeded(1))
    guess = QueryInversion()(replace(seen, features=noise, latent=noise), seeded())
    assert mse(guess.images, images).mean() > 0.9 * mse(torch.full_like(images, 0.5), images).mean()


def test_an_image_depends_on_its_own_query_and_nothing_is_changed() -> None:
    seen = query(pictures(2))
    before = [seen.latent.clone(), *(weight.clone() for weight in seen.client_model.parameters())]
    guesses = QueryInversion(iterations=20).attack_many([seen, query(pictures(2, seed=5))], [seeded(), seeded(1)])
    assert torch.equal(guesses[0].images, QueryInversion(iterations=20)(seen, seeded()).images)
    assert all(torch.equal(*pair) for pair in zip(before, [seen.latent, *seen.client_model.parameters()], strict=True))


@pytest.mark.parametrize(
    ("latent", "said"),
    [(torch.full((2, 12, 6, 6), torch.nan), "NaN or infinite"), (torch.zeros(2, 12, 5, 6), "expected (2, 12, 6, 6)")],
)
def test_what_does_not_fit_is_a_failed_guess_that_says_why(latent: Tensor, said: str) -> None:
    guess = QueryInversion(iterations=5)(replace(query(pictures(2)), features=latent, latent=latent), seeded())
    assert said in guess.failure
    assert torch.equal(guess.images, torch.full((2, *SHAPE), 0.5))
    assert guess.labels.tolist() == [-1, -1]


@pytest.mark.parametrize(
    "settings", [{"iterations": 0}, {"iterations": 1.5}, {"learning_rate": 0.0}, {"total_variation": -1.0}]
)
def test_settings_that_cannot_be_run_are_refused_by_name(settings: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(settings))):
        QueryInversion(**settings)  # type: ignore[arg-type]


def test_what_a_server_sends_itself_is_protected_anew_each_time() -> None:
    """The same images, the same algorithm: only the noise differs, and repeats with the generator."""
    sender = Sender(client_half(), parse("FeatureNoise(std=0.5)"), MEAN, STD)
    images, generator = pictures(3), seeded(2)
    first, again, other = (sender.query(images, g)[1] for g in (seeded(1), seeded(1), generator))
    assert torch.equal(first, again)
    noise = torch.cat([sent - sender.features(images) for sent in (first, other)])
    assert float(noise.std()) == pytest.approx(0.5, rel=0.1)
    assert not torch.equal(first, other)
