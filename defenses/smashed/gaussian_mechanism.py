"""The privacy of Gaussian noise, exactly.

Source: Balle, Wang, "Improving the Gaussian Mechanism for Differential Privacy: Analytical Calibration and Optimal
Denoising" (ICML 2018), Theorem 8. With r = sensitivity / standard deviation, the mechanism is (epsilon, delta)-DP exactly if

    delta >= Phi(r / 2 - epsilon / r) - exp(epsilon) Phi(-r / 2 - epsilon / r)
"""

import math
from statistics import NormalDist


def gaussian_delta(sensitivity_over_std: float, epsilon: float) -> float:
    """The smallest delta at which the mechanism is (epsilon, delta)-differentially private, epsilon and r being 0 or more.

    r independent releases count as one of sqrt(number) times the ratio.
    """
    from scipy.special import erfcx  # exp(x^2) erfc(x); slow to import, and most runs state no such bound

    ratio = sensitivity_over_std
    if ratio == 0 or epsilon == math.inf:
        return 0.0
    if ratio == math.inf:
        return 1.0
    # With a and b below, exp(epsilon) Phi(-b) = exp(-a^2 / 2) erfcx(b / sqrt(2)) / 2, which never overflows.
    a, b = epsilon / ratio - ratio / 2, epsilon / ratio + ratio / 2
    if a < 0:
        return float(0.5 * (math.erfc(a / math.sqrt(2)) - math.exp(-a * a / 2) * erfcx(b / math.sqrt(2))))
    # Phi(-a) written the same way: the difference keeps its digits however small both terms are.
    return float(0.5 * math.exp(-a * a / 2) * (erfcx(a / math.sqrt(2)) - erfcx(b / math.sqrt(2))))


def gaussian_ratio(epsilon: float, delta: float) -> float:
    """The largest sensitivity over standard deviation at which the mechanism is (epsilon, delta)-differentially private.

    Epsilon is at least 0 and finite, and delta in (0, 1).
    """
    low, high = 0.0, 1.0
    while gaussian_delta(high, epsilon) <= delta:  # delta grows with the ratio
        low, high = high, 2 * high
    while True:
        middle = low + (high - low) / 2
        if middle in (low, high):
            return low
        if gaussian_delta(middle, epsilon) <= delta:
            low = middle
        else:
            high = middle


def gaussian_epsilon(sensitivity_over_std: float, delta: float) -> float:
    """The smallest epsilon >= 0 at which the mechanism is (epsilon, delta)-differentially private, with delta in (0, 1).

    A ratio of inf, no noise, has no finite epsilon.
    """
    ratio = sensitivity_over_std
    if gaussian_delta(ratio, 0.0) <= delta:
        return 0.0
    # Leaving out the second, negative term of delta gives an epsilon that is enough; delta falls as epsilon grows.
    low, high = 0.0, ratio * (ratio / 2 - NormalDist().inv_cdf(delta))
    while True:
        middle = low + (high - low) / 2
        if middle in (low, high) or high == math.inf:
            return high
        if gaussian_delta(ratio, middle) <= delta:
            high = middle
        else:
            low = middle
