"""ATS's transformations of images, undone."""

import math

import pytest
import torch
import torch.nn.functional as F
from scipy.stats import multivariate_normal

from attacks.base import Knowledge
from attacks.guesses import Reconstruction
from attacks.image_measures import psnr
from attacks.refinement import policy_inversion
from clients.data.datasets import load_dataset
from clients.data.images import to_float
from defenses import ATS
from defenses.base import Batch
from defenses.images.ats import parse_policies
from defenses.images.transforms import LIBRARY, apply_transform
from defenses.pipeline import Pipeline
from defenses.random_draws import generator_for
from tests.attacks.wire import classes, pictures

GREY = "42-28-42+14-48-48"  # the default audit's


def digits():
    data = load_dataset("mnist-5k").train
    order = torch.randperm(len(data.images), generator=generator_for(0))[:464]
    images = to_float(data.images[order])
    return images[:400], data.labels[order][:400].long(), images[400:]


def undone(policies, known=None, data=digits):
    """The gain in mean PSNR (equal images count as 50 dB) over the transformed images, and what the attack makes of them."""
    auxiliary, labels, truth = data()
    seen = ATS(policies=policies).protect_batch(Batch(truth, torch.ones(len(truth), 1)), generator_for(1)).images
    own, pipeline = Batch(auxiliary, F.one_hot(labels, 10).float()), Pipeline((ATS(policies=known or policies),))
    knowledge = Knowledge(own, pipeline, (0.4,), (0.3,), lambda *_: None)
    attack = policy_inversion.PolicyInversion().fit(knowledge, generator_for(2))
    first = Reconstruction(seen, torch.zeros(len(seen), dtype=torch.long), {"cost": 1.0})
    (guess,) = attack.refine_many([None], [first], [generator_for(3)])
    return decibels(guess.images, truth) - decibels(seen, truth), guess


def decibels(guess, truth):
    return psnr(guess, truth).clamp(max=50).mean().item()


@pytest.mark.numeric
def test_digits_come_closer_to_the_original() -> None:
    for policies, least in ((GREY, 2), ("24", 15), ("10", 15), ("3-1-7+43-18-18", 6), ("9", 0.5)):
        gain, guess = undone(policies)
        assert gain > least, policies
        assert guess.diagnostics["ats-margin"] > 0
        assert guess.diagnostics["cost"] == 1
    for number, policy in enumerate(("3-1-7", "43-18-18")):
        assert abs(undone(policy, known="3-1-7+43-18-18")[1].diagnostics["ats-policy"] - number) < 0.1
    assert undone("24")[0] > undone("24", known="21")[0] + 10


def small_pictures():
    return pictures(300, side=16, seed=1), classes(300, seed=1), pictures(48, side=16, seed=2)


@pytest.mark.numeric
def test_what_is_visible_tells_what_was_shifted_out_of_the_frame(monkeypatch: pytest.MonkeyPatch) -> None:
    """Smooth pictures gain 33 dB. The mean border alone, whatever is visible, gains 9 dB."""
    monkeypatch.setattr(policy_inversion, "NOISE", 0.02)  # of exact pictures
    assert undone("43-24", data=small_pictures)[0] > 20


def test_draws_are_a_distribution_without_repeats() -> None:
    draws = policy_inversion.possible_draws(parse_policies(GREY), channels=1)
    assert math.isclose(sum(draw.probability for draw in draws), 1)
    # Two shifts: 4 sign pairs; sharpness and two shifts: 8.
    assert len({draw.steps for draw in draws}) == len(draws) == 12
    assert {draw.policy for draw in draws} == {0, 1}


def test_the_density_is_the_gaussian_with_the_points_covariance() -> None:
    points = torch.randn(50, 6, generator=generator_for(1)) @ torch.randn(6, 6, generator=generator_for(2))
    found = policy_inversion.fit_gaussian(points, components=5, noise=0.1).log_density(points)
    covariance = torch.cov(points.T, correction=0) + 0.01 * torch.eye(6)
    expected = multivariate_normal(points.mean(0).numpy(), covariance.numpy()).logpdf(points.numpy())
    assert torch.allclose(found, torch.from_numpy(expected).float(), atol=1e-2)


def test_every_inverse_helps_or_leaves_alone() -> None:
    images = 0.4 + 0.2 * pictures(4, side=24, channels=3, seed=3)
    images = F.pad(images[..., 8:-8, 8:-8], (8, 8, 8, 8))  # nothing is lost at the border, or clipped
    for index, (name, _) in enumerate(LIBRARY):
        for sign in (1, -1):
            seen = apply_transform(images, index, torch.full((4,), float(sign)))
            error = (policy_inversion.invert_transform(seen, index, sign) - images).square().mean()
            before = (seen - images).square().mean()
            assert error <= before + 1e-12, (name, sign)
            if name in ("invert", "color", "brightness"):
                assert error < 1e-8, (name, sign)
            assert not policy_inversion.changes_nothing(index, 3) or before == 0
