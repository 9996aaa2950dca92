"""The Gaussian mechanism against numerical integration, Monte Carlo, known values and limits."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from scipy.optimize import brentq
from scipy.stats import norm

from defenses.smashed.gaussian_mechanism import gaussian_delta, gaussian_epsilon


@pytest.mark.parametrize(
    ("ratio", "delta", "known"),
    [(1, 1e-5, 4.38), (math.sqrt(2), 1e-5, 6.57), (math.sqrt(2), 7.2e-6, 6.68), (2, 1e-5, 10.0)],
)
def test_known_values(ratio: float, delta: float, known: float):
    assert gaussian_epsilon(ratio, delta) == pytest.approx(known, abs=0.005)


@pytest.mark.parametrize("ratio", [0.05, 0.5, 1.0, 3.0])
@pytest.mark.parametrize("epsilon", [0.0, 0.1, 1.0, 5.0])
def test_delta_is_the_hockey_stick_divergence(ratio: float, epsilon: float):
    """The definition: delta = integral of max(0, p - exp(epsilon) q), for the two outputs that differ most."""
    grid = np.linspace(-12, 12 + ratio, 400_001)
    excess = np.maximum(0, norm.pdf(grid, ratio) - math.exp(epsilon) * norm.pdf(grid))
    assert gaussian_delta(ratio, epsilon) == pytest.approx(float(np.trapezoid(excess, grid)), rel=1e-6, abs=1e-12)


def test_delta_is_what_the_best_test_between_two_outputs_gains():
    generator, count, ratio, epsilon = torch.Generator().manual_seed(0), 400_000, 1.5, 1.0
    noise = torch.randn(2, count, generator=generator, dtype=torch.float64)
    threshold = epsilon / ratio + ratio / 2  # where the densities' ratio is exp(epsilon)
    hits, false_alarms = (float((x > threshold).double().mean()) for x in (noise[0] + ratio, noise[1]))
    gain = hits - math.exp(epsilon) * false_alarms
    spread = math.sqrt((hits * (1 - hits) + math.exp(2 * epsilon) * false_alarms * (1 - false_alarms)) / count)
    assert abs(gain - gaussian_delta(ratio, epsilon)) < 4 * spread


@pytest.mark.parametrize("ratio", [0.01, 0.3, 1.0, 4.0, 30.0])
@pytest.mark.parametrize("delta", [0.3, 1e-3, 1e-5, 1e-12])
def test_epsilon_is_the_root_of_theorem_8(ratio: float, delta: float):
    def excess(epsilon: float) -> float:
        second = math.exp(epsilon + norm.logcdf(-ratio / 2 - epsilon / ratio))
        return float(norm.cdf(ratio / 2 - epsilon / ratio)) - second - delta

    expected = 0.0 if excess(0.0) <= 0 else brentq(excess, 0, ratio**2 + 20 * ratio, xtol=1e-12)
    assert gaussian_epsilon(ratio, delta) == pytest.approx(expected, rel=1e-5, abs=1e-9)


@pytest.mark.parametrize("ratio", [1e-3, 0.2, 1.0, 10.0, 1e3])
@pytest.mark.parametrize("delta", [0.5, 1e-5, 1e-30, 1e-300])
def test_both_invert_each_other_far_into_the_tails(ratio: float, delta: float):
    epsilon = gaussian_epsilon(ratio, delta)
    if epsilon == 0:
        assert gaussian_delta(ratio, 0.0) <= delta
    else:
        assert gaussian_delta(ratio, epsilon) == pytest.approx(delta, rel=1e-6)
        assert gaussian_delta(ratio, epsilon * (1 - 1e-6)) > delta


def test_epsilon_is_below_what_the_classical_formula_asks_where_that_holds():
    for epsilon, delta in ((0.1, 1e-5), (0.9, 1e-6)):
        ratio = epsilon / math.sqrt(2 * math.log(1.25 / delta))
        assert gaussian_epsilon(ratio, delta) < epsilon


def test_delta_falls_with_epsilon_and_rises_with_the_ratio():
    by_epsilon = [gaussian_delta(1.0, epsilon) for epsilon in np.linspace(0, 700, 2000)]
    assert all(first > second or first == 0 for first, second in itertools.pairwise(by_epsilon))
    by_ratio = [gaussian_delta(float(ratio), 1.0) for ratio in np.geomspace(1e-2, 1e2, 500)]
    assert all(first <= second for first, second in itertools.pairwise(by_ratio))
    assert all(0 <= delta <= 1 for delta in by_epsilon + by_ratio)


def test_no_sensitivity_and_no_noise():
    assert (gaussian_delta(0.0, 0.0), gaussian_epsilon(0.0, 1e-5)) == (0.0, 0.0)
    assert (gaussian_delta(math.inf, 9.0), gaussian_epsilon(math.inf, 1e-5)) == (1.0, math.inf)
    assert gaussian_epsilon(1e200, 1e-5) == math.inf
    assert gaussian_delta(1.0, math.inf) == 0.0
