"""The Gaussian mechanism against numerical integration, known values and limits."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.stats import norm

from defenses.smashed.gaussian_mechanism import gaussian_delta, gaussian_epsilon, gaussian_ratio


def test_delta_is_the_hockey_stick_divergence() -> None:
    """The definition: delta = integral of max(0, p - exp(epsilon) q), for the two outputs that differ most."""
    for ratio, epsilon in itertools.product((0.05, 0.5, 1.0, 3.0), (0.0, 0.1, 1.0, 5.0)):
        grid = np.linspace(-12, 12 + ratio, 100_001)
        excess = np.maximum(0, norm.pdf(grid, ratio) - math.exp(epsilon) * norm.pdf(grid))
        expected = float(np.trapezoid(excess, grid))
        assert gaussian_delta(ratio, epsilon) == pytest.approx(expected, rel=1e-5, abs=1e-12), (ratio, epsilon)


def test_epsilon_is_the_root_of_theorem_8_and_that_of_known_values() -> None:
    for ratio, delta in itertools.product((0.01, 0.3, 1.0, 4.0, 30.0), (0.3, 1e-3, 1e-5, 1e-12)):

        def excess(epsilon: float, ratio: float = ratio, delta: float = delta) -> float:
            second = math.exp(epsilon + norm.logcdf(-ratio / 2 - epsilon / ratio))
            return float(norm.cdf(ratio / 2 - epsilon / ratio)) - second - delta

        expected = 0.0 if excess(0.0) <= 0 else brentq(excess, 0, ratio**2 + 20 * ratio, xtol=1e-12)
        assert gaussian_epsilon(ratio, delta) == pytest.approx(expected, rel=1e-5, abs=1e-9), (ratio, delta)
    known = ((1, 1e-5, 4.38), (math.sqrt(2), 1e-5, 6.57), (math.sqrt(2), 7.2e-6, 6.68), (2, 1e-5, 10.0))
    for ratio, delta, epsilon in known:
        assert gaussian_epsilon(ratio, delta) == pytest.approx(epsilon, abs=0.005)
    for epsilon, delta in ((0.1, 1e-5), (0.9, 1e-6)):  # the classical formula asks for more where it holds
        assert gaussian_epsilon(epsilon / math.sqrt(2 * math.log(1.25 / delta)), delta) < epsilon


def test_both_invert_each_other_far_into_the_tails() -> None:
    for ratio, delta in itertools.product((1e-3, 0.2, 1.0, 10.0, 1e3), (0.5, 1e-5, 1e-30, 1e-300)):
        epsilon = gaussian_epsilon(ratio, delta)
        if epsilon == 0:
            assert gaussian_delta(ratio, 0.0) <= delta
        else:
            assert gaussian_delta(ratio, epsilon) == pytest.approx(delta, rel=1e-6)
            assert gaussian_delta(ratio, epsilon * (1 - 1e-6)) > delta
    for epsilon, delta in itertools.product((1e-3, 0.7, 5.0, 400.0), (0.1, 1e-5, 1e-12)):
        assert gaussian_epsilon(gaussian_ratio(epsilon, delta), delta) == pytest.approx(epsilon, rel=1e-6, abs=1e-9)


def test_delta_falls_with_epsilon_and_rises_with_the_ratio() -> None:
    by_epsilon = [gaussian_delta(1.0, epsilon) for epsilon in np.linspace(0, 700, 500)]
    assert all(first > second or first == 0 for first, second in itertools.pairwise(by_epsilon))
    by_ratio = [gaussian_delta(float(ratio), 1.0) for ratio in np.geomspace(1e-2, 1e2, 200)]
    assert all(first <= second for first, second in itertools.pairwise(by_ratio))
    assert all(0 <= delta <= 1 for delta in by_epsilon + by_ratio)
    # No sensitivity, and no noise.
    assert (gaussian_delta(0.0, 0.0), gaussian_epsilon(0.0, 1e-5)) == (0.0, 0.0)
    assert (gaussian_delta(math.inf, 9.0), gaussian_epsilon(math.inf, 1e-5)) == (1.0, math.inf)
    assert gaussian_epsilon(1e200, 1e-5) == math.inf
    assert gaussian_delta(1.0, math.inf) == 0.0
