import math

import pytest
import torch
import torch.nn.functional as F
from scipy.stats import multivariate_normal

from attacks.base import Knowledge
from attacks.guesses import Reconstruction
from attacks.image_measures import psnr
from attacks.observations import AttackError
from attacks.refinement.policy_inversion import PolicyInversion, fit_gaussian, possible_draws
from attacks.refinement.transform_inverses import changes_nothing, invert_transform
from clients.data.datasets import load_dataset
from defenses import ATS
from defenses.base import Batch
from defenses.images.ats import parse_policies
from defenses.images.transforms import LIBRARY, apply_transform
from defenses.pipeline import Pipeline
from defenses.random_draws import generator_for
from tests.attacks.wire import classes, pictures

GREY = "42-28-42+14-48-48"  # the default audit's


def knowledge(images, labels, policies=GREY, num_classes=10, use_prob=False):
    pipeline = Pipeline((ATS(policies=policies, use_prob=use_prob),) if policies else ())
    return Knowledge(Batch(images, F.one_hot(labels, num_classes).float()), pipeline, (0.4,), (0.3,), lambda *_: None)


def digits():
    data = load_dataset("mnist-5k").train
    order = torch.randperm(len(data.images), generator=generator_for(0))
    images = data.images[order].float() / (255 if data.images.dtype == torch.uint8 else 1)
    return images[:400], data.labels[order][:400].long(), images[400:464]


def small_pictures():
    return pictures(300, side=16, seed=1), classes(300, seed=1), pictures(48, side=16, seed=2)


def undone(auxiliary, labels, images, policies, known=None, **fields):
    """Transformed images, and what the attack makes of them."""
    seen = ATS(policies=policies).protect_batch(Batch(images, torch.ones(len(images), 1)), generator_for(1)).images
    attack = PolicyInversion(**fields).fit(knowledge(auxiliary, labels, known or policies), generator_for(2))
    guess = Reconstruction(seen, torch.zeros(len(seen), dtype=torch.long), {"cost": 1.0})
    return seen, attack.refine_many([None], [guess], [generator_for(3)])[0]


def decibels(guess, truth):
    return psnr(guess, truth).clamp(max=50).mean().item()


# Lower bounds on the gain in mean PSNR (equal images count as 50 dB), below what was measured.
@pytest.mark.parametrize(("policies", "gain"), [(GREY, 2), ("24", 15), ("10", 15), ("3-1-7+43-18-18", 6), ("9", 0.5)])
def test_digits_come_closer_to_the_original(policies, gain):
    auxiliary, labels, truth = digits()
    seen, guess = undone(auxiliary, labels, truth, policies)
    assert decibels(guess.images, truth) > decibels(seen, truth) + gain
    assert guess.diagnostics["ats-margin"] > 0
    assert guess.diagnostics["cost"] == 1


@pytest.mark.parametrize("prior", ["gaussian", "classes"])
def test_pictures_get_their_lost_borders_back(prior):
    auxiliary, labels, truth = small_pictures()
    seen, guess = undone(auxiliary, labels, truth, "43-24", prior=prior, noise=0.02)
    assert decibels(guess.images, truth) > decibels(seen, truth) + 6
    # A shift loses nothing inside: what is wrong lies in the border, which is closer than the mean of all pictures.
    assert decibels(guess.images, truth) > decibels(auxiliary.mean(0).expand_as(truth), truth) + 3


@pytest.mark.long
def test_the_policy_is_recognised():
    auxiliary, labels, truth = digits()
    for number, policy in enumerate(("3-1-7", "43-18-18")):
        _, guess = undone(auxiliary, labels, truth, policy, known="3-1-7+43-18-18")
        assert abs(guess.diagnostics["ats-policy"] - number) < 0.05


def test_knowing_the_wrong_policy_does_not_help():
    auxiliary, labels, truth = digits()
    _, right = undone(auxiliary, labels, truth, "24")
    _, wrong = undone(auxiliary, labels, truth, "24", known="21")
    assert decibels(right.images, truth) > decibels(wrong.images, truth) + 10


def test_identities_and_no_ats_leave_images():
    auxiliary, labels, truth = small_pictures()
    _, guess = undone(auxiliary, labels, truth, "28-39")
    assert torch.allclose(guess.images, truth, atol=1e-6)
    untouched = Reconstruction(truth, labels[:48])
    attack = PolicyInversion().fit(knowledge(auxiliary, labels, ""), generator_for(0))
    plain = attack.refine_many([None], [untouched], [generator_for(0)])[0]
    assert torch.equal(plain.images, truth)
    assert plain.diagnostics == {"ats-draws": 0.0}


def test_noise_stays_noise():
    auxiliary, labels, truth = digits()
    noise = torch.rand(truth.shape, generator=generator_for(5))
    attack = PolicyInversion().fit(knowledge(auxiliary, labels), generator_for(2))
    guess = attack.refine_many([None], [Reconstruction(noise, labels[:64])], [generator_for(3)])[0]
    mean_image = decibels(auxiliary.mean(0).expand_as(truth), truth)
    assert decibels(guess.images, truth) < mean_image + 0.5


def test_failures_shapes_and_missing_fit():
    auxiliary, labels, truth = small_pictures()
    attack = PolicyInversion(components=8)
    failed = Reconstruction(truth, labels[:48], failure="why")
    with pytest.raises(AttackError, match="auxiliary"):
        attack.refine_many([None], [failed], [generator_for(0)])
    with pytest.raises(AttackError, match="auxiliary"):
        attack.fit(knowledge(auxiliary[:1], labels[:1]), generator_for(0))
    fitted = attack.fit(knowledge(auxiliary, labels), generator_for(0))
    small = Reconstruction(torch.rand(1, 1, 5, 5), labels[:1])
    kept, refused = fitted.refine_many([None, None], [failed, small], [generator_for(0)] * 2)
    assert kept is failed
    assert "shape" in refused.failure
    assert refused.images.eq(0.5).all()
    assert fitted == attack
    assert repr(fitted) == "PolicyInversion(components=8)"
    with pytest.raises(ValueError, match="prior"):
        PolicyInversion(prior="none")


def test_draws_are_a_distribution_without_repeats():
    draws = possible_draws(parse_policies(GREY), use_prob=False, channels=1)
    # Two shifts: 4 sign pairs; sharpness and two shifts: 8.
    assert len(draws) == 12
    assert {draw.policy for draw in draws} == {0, 1}
    draws = possible_draws(parse_policies("42-28-42+14-48-48"), use_prob=True, channels=1)
    assert math.isclose(sum(draw.probability for draw in draws), 1)
    assert len({draw.steps for draw in draws}) == len(draws)


def test_density_is_the_gaussian_with_the_points_covariance():
    points = torch.randn(50, 6, generator=generator_for(1)) @ torch.randn(6, 6, generator=generator_for(2))
    fitted = fit_gaussian(points, components=5, noise=0.1)
    covariance = torch.cov(points.T, correction=0) + 0.01 * torch.eye(6)
    expected = multivariate_normal(points.mean(0).numpy(), covariance.numpy()).logpdf(points.numpy())
    assert torch.allclose(fitted.log_density(points), torch.from_numpy(expected).float(), atol=1e-2)


def test_every_inverse_helps_or_leaves_alone():
    images = 0.4 + 0.2 * pictures(4, side=24, channels=3, seed=3)
    images = F.pad(images[..., 8:-8, 8:-8], (8, 8, 8, 8))  # nothing is lost at the border, or clipped
    for index, (name, _, _) in enumerate(LIBRARY):
        for sign in (1, -1):
            seen = apply_transform(images, index, torch.full((4,), float(sign)))
            error = (invert_transform(seen, index, sign) - images).square().mean()
            before = (seen - images).square().mean()
            assert error <= before + 1e-12
            if name in ("invert", "color", "brightness"):
                assert error < 1e-8
            assert not changes_nothing(index, 3) or before == 0
