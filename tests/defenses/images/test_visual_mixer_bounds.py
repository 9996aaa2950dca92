"""Window bounds against the paper's table, enumeration, numerical integration and other operators."""

from __future__ import annotations

import itertools
import math
from collections import Counter

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy.optimize import linprog
from scipy.stats import norm
from torch import Tensor

from defenses.images.vfe import vfe_map, vfe_normalised
from defenses.images.visual_mixer_bounds import (
    ESTIMATORS,
    output_change,
    public_probability,
    shuffled_vfe_variance,
    window_lower_bound,
    window_outputs,
    window_upper_bound,
    within_probability,
)

TABLE_I = {
    "0": 200, "w1": 457, "w2": 212, "w3": 70, "w4": 9, "w1 + w2": 473, "w1 + w3": 247, "w1 + w4": 60, "w2 + w3": 140,
    "w2 + w4": 15, "w3 + w4": 3, "w1 + w2 + w3": 411, "w1 + w2 + w4": 92, "w1 + w3 + w4": 28, "w2 + w3 + w4": 5,
    "w1 + w2 + w3 + w4": 138,
}  # fmt: skip


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


@pytest.mark.numeric
def test_the_chi_square_law_fits_neither_shuffled_nor_independent_pixels() -> None:
    """VFE of independent normal pixels is x' L x with the grid's Laplacian L, of variance 2 tr(L^2), here 4 * 516."""
    chi_square = 4 * 8 * 7
    simulated = vfe_map(torch.randn(20_000, 8, 8, generator=generator(), dtype=torch.float64), 8) / 2
    degrees = torch.full((8, 8), 4) - torch.eye(8)[[0, 7]].sum(0).int() - torch.eye(8)[[0, 7]].sum(0).int()[:, None]
    exact = 2 * float(degrees.square().sum() + degrees.sum()) / 4
    assert exact == 516
    assert simulated.var() == pytest.approx(exact, rel=0.05)
    assert shuffled_vfe_variance(8) < 0.6 * chi_square < chi_square < 0.5 * exact


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


def test_estimators_are_ordered_kernel_by_kernel() -> None:
    weights = torch.randn(3000, 4, generator=generator())
    change = {name: output_change(weights, name, generator()) for name in ESTIMATORS}
    assert (change["perm"] <= change["exact"]).all()
    assert (change["pairs"] <= change["exact"]).all()
    assert (change["exact"] <= change["sum"] + 1e-5).all()
    one_sign = (weights > 0).all(1) | (weights < 0).all(1)
    torch.testing.assert_close(change["exact"][one_sign], change["sum"][one_sign])
    for name in ESTIMATORS:  # doubling a kernel doubles the change, so d is in units of a weight's standard deviation
        torch.testing.assert_close(output_change(2 * weights, name, generator()), 2 * change[name])


def test_grey_windows_can_change_the_output_more_than_binary_ones() -> None:
    """The least output over [0, 1]^9 is a linear programme: minimise t, where no entry of the convolution exceeds t."""
    weights = torch.randn(40, 4, generator=generator(), dtype=torch.float64)
    binary = output_change(weights, "exact", generator())
    highest = window_outputs(weights).amax(0)
    excess = []
    for kernel, change, high in zip(weights, binary, highest, strict=True):
        rows = np.zeros((4, 10))
        rows[:, 9] = -1
        for position, (y, x) in enumerate(itertools.product((0, 1), repeat=2)):
            rows[position, [3 * y + x, 3 * y + x + 1, 3 * y + x + 3, 3 * y + x + 4]] = kernel.numpy()
        lowest = linprog(np.eye(10)[9], rows, np.zeros(4), bounds=[(0, 1)] * 9 + [(None, None)]).fun
        excess.append(float(high) - lowest - float(change))
    assert min(excess) > -1e-9
    assert max(excess) > 0.1


@pytest.mark.numeric
def test_sum_estimator_equals_numerical_integration() -> None:
    step, samples = 4e-3, 100_000
    grid = np.arange(0, 12, step) + step / 2
    density = 2 * norm.pdf(grid)
    four = density
    for _ in range(3):  # density of the sum of four half-normal weights; each convolution shifts the grid by step / 2
        four = np.convolve(four, density)[: len(grid)] * step
    for d in (2.0, 4.0, 5.0):
        exact = four[grid + 1.5 * step <= d].sum() * step
        sampled = within_probability(d, "sum", generator(), samples)
        assert abs(sampled - exact) < 4.5 * math.sqrt(exact * (1 - exact) / samples) + step


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


def test_table_1_of_the_paper() -> None:
    """How often each sum of weights is the output, over 512 binary windows and 5 sign classes (2560 cases).

    Super-increasing kernels (w1 > w2 > w3 > w4), one per number of positive weights, each with the weight opposite to w1 in the
    2 x 2 kernel. The paper does not state them; this is the arrangement that reproduces its table.
    """
    names, counts = ["w1", "w2", "w3", "w4"], Counter[str]()
    kernels = ((-1, -2, -4, -8), (1, -2, -4, -8), (2, 1, -4, -8), (4, 2, 1, -8), (8, 4, 2, 1))
    for values, opposite in zip(kernels, (3, 2, 3, 2, 2), strict=True):
        # Row-major (w1, x, y, opposite); x and y are interchangeable, because transposing all windows changes no count.
        order = [0, *(i for i in (1, 2, 3) if i != opposite - 1), opposite - 1]
        outputs = window_outputs(torch.tensor([[float(values[i]) for i in order]])).squeeze(1)
        label = {
            sum(itertools.compress(values, chosen)): " + ".join(itertools.compress(names, chosen)) or "0"
            for chosen in itertools.product((0, 1), repeat=4)
        }
        counts.update(label[int(output)] for output in outputs)
    assert counts == TABLE_I
    assert counts.total() == 2560
