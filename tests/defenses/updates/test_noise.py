"""Noise by Kolmogorov-Smirnov tests, clipping by its bound and direction, pruning against a slow reference with ties."""

import math
from fractions import Fraction

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from defenses.base import Batch
from defenses.random_draws import generator_for
from defenses.tensors import Update
from defenses.updates.clipping import Clip
from defenses.updates.noise import GaussianNoise, ImageNoise, LaplaceNoise
from defenses.updates.pruning import Pruning, prune_smallest

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
    noise = ImageNoise(std=5 / 255).protect_batch(grey, generator_for(1)).images - 0.5
    assert stats.kstest(noise.flatten().numpy(), stats.norm(0, 5 / 255).cdf).pvalue > 1e-4
    clamped = ImageNoise().protect_batch(grey, generator_for(1)).images
    torch.testing.assert_close(clamped, (0.5 + 10 * noise).clamp(0, 1), atol=1e-5, rtol=0)


def clipped(max_norm: float, **update: torch.Tensor) -> Update:
    return Clip(max_norm).protect_update(update, generator_for(0))


@given(scale=st.floats(1e-6, 1e6), max_norm=st.floats(1e-3, 1e3))
def test_norm_is_bounded_over_all_parameters_together_and_direction_kept(scale: float, max_norm: float) -> None:
    generator = torch.Generator().manual_seed(0)
    shapes = {"conv": (4, 3, 3, 3), "bias": (4,), "scale": ()}
    update = {name: scale * torch.randn(shape, generator=generator) for name, shape in shapes.items()}
    both = (
        torch.cat([tensor.flatten().double() for tensor in one.values()])
        for one in (update, clipped(max_norm, **update))
    )
    before, after = both
    if before.norm() < max_norm:
        assert torch.equal(before, after)
    assert after.norm().item() == pytest.approx(min(before.norm().item(), max_norm), rel=1e-5)
    assert torch.cosine_similarity(before, after, dim=0).item() == pytest.approx(1, abs=1e-6)


def test_worked_examples() -> None:
    assert not any(tensor.any() for tensor in clipped(1.0, w=torch.zeros(3), s=torch.tensor(0.0)).values())
    # The squares overflow single precision.
    assert clipped(1.0, w=torch.full((4,), 1e30))["w"].tolist() == pytest.approx([0.5] * 4)
    for largest, left in ((2.0, 0.25), (4.0, 0.125), (math.inf, 0.0)):  # each entry times the bound over the norm
        found = clipped(2.0, w=torch.tensor(largest), s=torch.tensor(0.25))
        assert found["s"].item() == pytest.approx(left, rel=0.01)


@given(values=st.lists(st.integers(-3, 3).map(lambda n: n / 2), min_size=1, max_size=40), percent=st.integers(0, 100))
def test_the_smallest_go_and_exactly_so_many(values: list[float], percent: int) -> None:
    pruned = prune_smallest(torch.tensor(values), percent / 100).tolist()
    num_pruned = int(Fraction(percent, 100) * len(values))
    order = sorted(range(len(values)), key=lambda i: (abs(values[i]), i))
    assert pruned == [0.0 if i in order[:num_pruned] else value for i, value in enumerate(values)]


def test_every_tensor_is_pruned_on_its_own_by_an_exact_count() -> None:
    update = {
        "large": torch.arange(1.0, 11) * 1000, "small": torch.arange(1.0, 11) / 1000, "scalar": torch.tensor(1e-9),
    }  # fmt: skip
    pruned = Pruning(fraction=0.7).protect_update(update, generator_for(0))
    assert {name: int((tensor != 0).sum()) for name, tensor in pruned.items()} == {"large": 3, "small": 3, "scalar": 1}
    tensor = torch.randn(20, 5, generator=torch.Generator().manual_seed(0)) + 10
    for percent in (0, 7, 29, 57, 58, 70, 95, 99, 100):
        assert (prune_smallest(tensor, percent / 100) != 0).sum() == 100 - percent
