"""Noise: its law by Kolmogorov-Smirnov tests, and the mistakes that noise defences make elsewhere."""

from __future__ import annotations

import pytest
import torch
from scipy import stats

from defenses.base import Batch
from defenses.random_draws import generator_for
from defenses.updates.noise import GaussianNoise, ImageNoise, LaplaceNoise

LAWS = ((GaussianNoise(std=0.3), stats.norm(0, 0.3)), (LaplaceNoise(scale=0.3), stats.laplace(0, 0.3)))


@pytest.mark.numeric
def test_noise_on_updates_has_its_law() -> None:
    for defense, law in LAWS:
        for dtype in (torch.float32, torch.float64):
            update = {"w": torch.full((200, 100), 2.0, dtype=dtype), "b": torch.zeros(20_000, dtype=dtype)}
            noisy = defense.protect_update(update, generator_for(0))
            noise = {name: (noisy[name] - update[name]).flatten().double().numpy() for name in update}
            for values in noise.values():
                assert stats.kstest(values, law.cdf).pvalue > 1e-4
                assert stats.kstest(values, stats.norm(0, 0.33).cdf).pvalue < 1e-6  # the test can tell
            assert abs(stats.pearsonr(noise["w"], noise["b"]).statistic) < 4.5 / 20_000**0.5


def test_scalars_get_noise_and_half_precision_that_of_full_precision_rounded() -> None:
    for defense, _ in LAWS:
        noisy = defense.protect_update({"scale": torch.tensor(1.0)}, generator_for(3))
        assert noisy["scale"].shape == ()
        assert noisy["scale"] != 1.0
        half, full = torch.zeros(1000, dtype=torch.bfloat16), torch.zeros(1000)
        rounded = defense.protect_update({"w": half}, generator_for(5))["w"]
        assert torch.equal(rounded, defense.protect_update({"w": full}, generator_for(5))["w"].bfloat16())


@pytest.mark.numeric
def test_laplace_noise_is_finite_in_the_tails() -> None:
    noisy = LaplaceNoise(scale=1.0).protect_update({"w": torch.zeros(2_000_000)}, generator_for(6))["w"]
    assert torch.isfinite(noisy).all()
    assert noisy.abs().max() > 12  # P(|x| > 12) = 6e-6: the tails are there


@pytest.mark.numeric
def test_noise_on_images_is_the_papers_50_of_255() -> None:
    grey = Batch(torch.full((4, 3, 64, 64), 0.5), torch.eye(4))
    noise = ImageNoise(clamp=False).protect_batch(grey, generator_for(1)).images - 0.5
    assert stats.kstest(noise.flatten().numpy(), stats.norm(0, 50 / 255).cdf).pvalue > 1e-4
    clamped = ImageNoise().protect_batch(grey, generator_for(1)).images
    torch.testing.assert_close(clamped, (0.5 + noise).clamp(0, 1))
