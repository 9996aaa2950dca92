"""Window bounds against enumeration, numerical integration and other operators."""

import itertools
import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from defenses.images.vfe import vfe_normalised
from defenses.images.visual_mixer_windows import (
    output_change,
    public_probability,
    shuffled_vfe_variance,
    window_lower_bound,
    window_outputs,
    window_upper_bound,
    within_probability,
)


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def kurtosis_of(pixels: Tensor) -> float:
    centred = pixels - pixels.mean()
    return float(centred.pow(4).mean() / centred.square().mean() ** 2)


# ---- lower bound


def test_variance_equals_the_enumeration_of_all_shuffles() -> None:
    for values in ((0.0, 1.0, 2.0, 4.0), (0.0, 0.0, 0.0, 1.0), (0.0, 0.0, 1.0, 1.0), (-1.0, 0.5, 7.0, 7.5)):
        shuffles = torch.tensor(list(itertools.permutations(values)), dtype=torch.float64).view(-1, 2, 2)
        exact = float(vfe_normalised(shuffles, 2).var(unbiased=False))
        assert shuffled_vfe_variance(2, kurtosis_of(shuffles[0])) == pytest.approx(exact), values
    for size in (8, 16, 32):  # about half of the chi-square value
        assert shuffled_vfe_variance(size) == pytest.approx(2 * size * (size - 1), rel=0.05)
        assert shuffled_vfe_variance(size) == shuffled_vfe_variance(size, 3 * (size**2 - 1) / (size**2 + 1))
    assert shuffled_vfe_variance(1) == 0
    assert shuffled_vfe_variance(2, kurtosis=3) == pytest.approx(shuffled_vfe_variance(2, kurtosis=7 / 3))


@pytest.mark.numeric
def test_variance_equals_simulated_shuffles() -> None:
    for size, law in ((3, "binary"), (5, "normal"), (16, "uniform")):
        pixels = torch.rand(size * size, generator=generator(), dtype=torch.float64)
        pixels = {"uniform": pixels, "normal": torch.special.ndtri(pixels), "binary": (pixels < 0.3).double()}[law]
        repeats = 4000
        orders = torch.rand(repeats, size * size, generator=generator()).argsort(1)
        simulated = vfe_normalised(pixels[orders].view(repeats, size, size), size)
        spread = (simulated - simulated.mean()).square()
        expected = shuffled_vfe_variance(size, kurtosis_of(pixels))
        assert abs(spread.mean() - expected) < 4.5 * spread.std() / repeats**0.5, (size, law)


def test_lower_bound_is_the_smallest_window_that_reaches_the_target() -> None:
    for target, window in ((0, 1), (4, 2), (60, 6), (112, 8), (112.01, 9), (200, 11)):
        assert window_lower_bound(target) == window == math.ceil((1 + math.sqrt(1 + 2 * target)) / 2)
    for target, margin in ((60, 2), (110, 2), (110, 0.1), (200, 3), (5, 1)):
        window = window_lower_bound(target, margin)
        last, reached = (
            2 * side * (side - 1) - margin * math.sqrt(shuffled_vfe_variance(side)) for side in (window - 1, window)
        )
        assert reached >= target > last
    window = window_lower_bound(60, margin=2)  # as often as the margin says
    pixels = torch.rand(3000, window * window, generator=generator(), dtype=torch.float64)
    assert (vfe_normalised(pixels.view(-1, window, window), window) >= 60).double().mean() > 0.96


# ---- upper bound


def test_outputs_equal_convolution_and_pooling() -> None:
    weights = torch.randn(7, 4, generator=generator(), dtype=torch.float64)
    binary = torch.tensor(list(itertools.product((0.0, 1.0), repeat=9)), dtype=torch.float64).view(512, 1, 3, 3)
    expected = F.max_pool2d(F.conv2d(binary, weights.view(7, 1, 2, 2)), 2).flatten(1)
    torch.testing.assert_close(window_outputs(weights), expected)
    one_sign = (weights > 0).all(1) | (weights < 0).all(1)
    exact, total = (output_change(weights, name, generator()) for name in ("exact", "sum"))
    torch.testing.assert_close(exact, expected.amax(0) - expected.amin(0))
    by_count = [expected[binary.flatten(1).sum(1) == count] for count in range(10)]
    among = torch.stack([group.amax(0) - group.amin(0) for group in by_count]).amax(0)  # windows with as many ones
    torch.testing.assert_close(output_change(weights, "perm", generator()), among)
    torch.testing.assert_close(exact[one_sign], total[one_sign])


KNOWN = {
    4: {"sum": 0.764, "exact": 0.926, "perm": 0.962, "pairs": 0.9993}, 5: {"sum": 0.923, "exact": 0.981, "perm": 0.995},
}  # fmt: skip


@pytest.mark.numeric
def test_probabilities_and_bounds_are_those_of_an_independent_simulation() -> None:
    """Which gave these values with a sampling error of its own."""
    samples = 20_000
    for d, by_estimator in KNOWN.items():
        for estimator, known in by_estimator.items():
            error = math.sqrt(2 * known * (1 - known) / samples)
            found = within_probability(d, estimator, generator(), samples)
            assert abs(found - known) < 4.5 * error + 5e-4, (d, estimator)
    for d, estimator, window in ((4, "sum", 5), (4, "perm", 11), (5, "sum", 7), (5, "exact", 15)):
        base, m = KNOWN[d][estimator], (window - 3) // 2
        assert window_upper_bound(base, 0.5) == window
        assert base ** (m * m) >= 0.5 > base ** ((m + 1) ** 2)
        assert window_upper_bound(base, 0.5, strict=True) == window - 2


def test_upper_bounds_that_do_not_exist_are_refused() -> None:
    for use, message in (
        (lambda: window_upper_bound(within_probability(100, "exact", generator(), 100)), "every sampled kernel"),
        (lambda: window_upper_bound(within_probability(0, "exact", generator(), 100)), "no sampled kernel"),
        (lambda: window_upper_bound(0.8, 0.9, strict=True), r"a window of 3 stays .* with probability 0\.8000"),
    ):
        with pytest.raises(ValueError, match=message):
            use()
    assert window_upper_bound(0.8, 0.9) == 3


@pytest.mark.numeric
def test_the_public_stream_gives_everyone_the_same_bound() -> None:
    """The same number whatever was drawn before, within sampling error of another stream's."""
    torch.manual_seed(3)
    first = public_probability(5.0, "sum")
    torch.manual_seed(4)
    assert public_probability.__wrapped__(5.0, "sum") == first
    other = within_probability(5, "sum", generator())
    assert other != first
    assert abs(other - first) < 4.5 * math.sqrt(2 * first * (1 - first) / 200_000)
