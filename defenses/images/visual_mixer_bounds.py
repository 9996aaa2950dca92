"""What VisualMixer's window bounds follow from: a wanted VFE, and a tolerated change of a model's output.

Source: the paper's sections IV-B and IV-C, equations 10-17. Neither images nor their size enter, and nothing that is secret.
"""

from __future__ import annotations

import functools
import math
from itertools import product

import torch
from torch import Tensor

from defenses.images.vfe import pair_count
from defenses.random_draws import generator_for

ESTIMATORS = ("exact", "sum", "perm", "pairs")


def shuffled_vfe_variance(window: int, kurtosis: float | None = None) -> float:
    """Exact variance of VFE_R / (2 sigma^2) over all permutations of a square window's pixels; 0 for a single pixel.

    Divided by the number of pairs E, that quantity is Geary's C on the grid with n = WS^2 pixels, of known variance:

        Var = [(n-1)(n^2-3n+3-(n-1)b) E - (n-1)(n^2+3n-6-(n^2-n+2)b) D/4 + (n^2-3-(n-1)^2 b) E^2] / (n(n-2)(n-3))

    where b is the pixels' kurtosis, by default 3 (n - 1) / (n + 1), the mean over normal samples, and D the sum of squared
    neighbour counts. For bell-shaped pixels it is near 2 WS (WS - 1), half of the paper's chi-square value, because the pixels of
    a window are a fixed set. Source: Cliff, Ord, "Spatial Processes: Models and Applications" (1981), randomisation moments of
    Geary's C.
    """
    if window == 1:
        return 0.0
    n, edges = window**2, pair_count(window, window)
    b = 3 * (n - 1) / (n + 1) if kurtosis is None else min(kurtosis, (n**2 - 3 * n + 3) / (n - 1))
    # 4 corners have 2 neighbours, 4 (WS - 2) border pixels have 3, the rest have 4.
    squared_degrees = 4 * 4 + 4 * (window - 2) * 9 + (window - 2) ** 2 * 16
    first = (n - 1) * (n**2 - 3 * n + 3 - (n - 1) * b) * edges
    second = (n - 1) * (n**2 + 3 * n - 6 - (n**2 - n + 2) * b) * squared_degrees / 4
    third = (n**2 - 3 - (n - 1) ** 2 * b) * edges**2
    return (first - second + third) / (n * (n - 2) * (n - 3))


def shuffled_vfe(window: int, margin: float = 0.0) -> float:
    """What the VFE / (2 sigma^2) of a shuffled window reaches: its mean 2 WS (WS - 1), less ``margin`` standard deviations.

    The paper takes the deviation of a chi-square law, see ``shuffled_vfe_variance``; the mean is the same.
    """
    return pair_count(window, window) - margin * math.sqrt(shuffled_vfe_variance(window))


def window_lower_bound(target: float, margin: float = 0.0) -> int:
    """WS_l: the smallest window whose shuffled VFE reaches a target V, of VFE / (2 sigma^2) (section IV-B); see ``shuffled_vfe``.

    Without a margin it is ceil((1 + sqrt(1 + 2 V)) / 2).
    """
    window = int((1 + math.sqrt(1 + 2 * target)) / 2)
    while shuffled_vfe(window, margin) < target:
        window += 1
    return window


def window_upper_bound(within: float, confidence: float = 0.5, *, strict: bool = False) -> int:
    """WS_u = 3 + 2 floor(m): the largest window whose output changes little with probability ``confidence`` (equation 17).

    A window of 3 changes it little with probability alpha_0 = ``within``. The paper says that a window of 3 + 2m has m^2 outputs,
    hence alpha = alpha_0^(m^2), so m = sqrt(log alpha / log alpha_0); but m = 0 has one output, not none: with ``strict`` (m + 1)^2
    count. The paper gives no alpha.
    """
    if within in (0.0, 1.0):
        known = "every" if within else "no"
        raise ValueError(f"{known} sampled kernel stays within max_change, so the bound is unknown; change max_change")
    m = math.sqrt(math.log(confidence) / math.log(within)) - strict
    if m < 0:
        raise ValueError(
            f"a window of 3 stays within max_change with probability {within:.4f} only; lower confidence or raise max_change"
        )
    return 3 + 2 * math.floor(m)


@functools.cache
def public_probability(max_change: float, estimator: str) -> float:
    """``within_probability`` from a stream that everyone knows.

    Clients and attackers must find the same bound, and a client's secret must not show in it.
    """
    return within_probability(max_change, estimator, generator_for("VisualMixer", "window_upper"))


def within_probability(
    max_change: float, estimator: str, generator: torch.Generator, num_samples: int = 200_000
) -> float:
    """alpha_0 = P(change <= max_change), by Monte Carlo over 2 x 2 kernels of independent standard normal weights.

    The paper gives no value of d, here ``max_change`` in standard deviations of a weight. With 200,000 kernels the standard
    error of alpha_0 is 0.0003 at d = 5.

    The output B is a 2 x 2 convolution of a 3 x 3 window in [0, 1] followed by a 2 x 2 max-pooling (equations 13-15).
    The change between a window and its shuffled version is estimated as

    - "exact": max B - min B over all 512 binary windows, as the paper enumerates. B is convex, so its maximum is binary
      but its minimum need not be: over windows in [0, 1], a linear programme for 20,000 kernels gives alpha_0 = 0.977
      instead of 0.982 at 5, hence WS_u = 13 instead of 15;
    - "sum": the sum of absolute weights, the bound that equations 13 and 14 give; never below "exact";
    - "perm": as "exact", among windows with equally many ones, which is what a shuffle can reach;
    - "pairs": |B - B'| for two random binary windows, a typical change and not a bound.

    Equation 16 of the paper integrates w1 + w2 over a truncated density, which neither agrees with equation 15 nor is
    the law of ordered weights; it is not offered.
    """
    within = 0
    for start in range(0, num_samples, 1000):  # 512 outputs per kernel: 2 MB at a time stay in the processor's cache.
        weights = torch.randn(min(1000, num_samples - start), 4, generator=generator)
        within += int((output_change(weights, estimator, generator) <= max_change).sum())
    return within / num_samples


def output_change(weights: Tensor, estimator: str, generator: torch.Generator) -> Tensor:
    """The change of ``within_probability`` for given kernels: (S, 4), row-major weights -> (S,)."""
    if estimator == "sum":
        return weights.abs().sum(1)
    outputs = window_outputs(weights)
    if estimator == "pairs":
        pairs = torch.randint(len(outputs), (2, len(weights)), generator=generator)
        return (outputs.gather(0, pairs[:1]) - outputs.gather(0, pairs[1:])).abs().squeeze(0)
    ones = _binary_windows().sum((1, 2))
    groups = [ones == ones] if estimator == "exact" else [ones == count for count in range(10)]
    return torch.stack([outputs[group].amax(0) - outputs[group].amin(0) for group in groups]).amax(0)


def window_outputs(weights: Tensor) -> Tensor:
    """Convolution and max-pooling of all 512 binary 3 x 3 windows: kernels (S, 4), row-major -> (512, S)."""
    kernels = torch.tensor(list(product((0.0, 1.0), repeat=4)), dtype=weights.dtype)
    sums = kernels @ weights.T  # (16, S): what each of the 16 binary 2 x 2 patches gives.
    patches = _binary_windows().unfold(1, 2, 1).unfold(2, 2, 1).reshape(512, 4, 4)
    numbers = (patches * torch.tensor([8, 4, 2, 1])).sum(-1)  # (512, 4): which patch is at each place.
    first, second, third, fourth = (sums.index_select(0, place) for place in numbers.unbind(1))
    return torch.maximum(torch.maximum(first, second), torch.maximum(third, fourth))


def _binary_windows() -> Tensor:
    return torch.tensor(list(product((0, 1), repeat=9))).view(512, 3, 3)
