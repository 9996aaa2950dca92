"""What VisualMixer's window bounds follow from: a wanted VFE, a tolerated output change, and the number of keys.

Source: Li, Zhang, Ren, Li, Zhang, "You Can Use But Cannot Recognize: Preserving Visual Privacy in Deep Neural Networks"
(NDSS 2024), sections IV-B, IV-C and V-C, equations 10-17, table I. Computed offline, once per configuration.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from itertools import compress, product
from typing import NamedTuple

import torch
from torch import Tensor

from defenses.vfe import pair_count

ESTIMATORS = ("exact", "sum", "perm", "pairs")

# Super-increasing kernels (w1 > w2 > w3 > w4), one per number of positive weights, each with the weight opposite to w1
# in the 2 x 2 kernel. The paper does not state them; this is the arrangement that reproduces its table I.
_TABLE_KERNELS = (
    ((-1, -2, -4, -8), 3),
    ((1, -2, -4, -8), 2),
    ((2, 1, -4, -8), 3),
    ((4, 2, 1, -8), 2),
    ((8, 4, 2, 1), 2),
)


class Keys(NamedTuple):
    """How many permutations an exhaustive search faces, as base-2 logarithms.

    Attributes:
        log2_product: All windows at once: prod (n_i!). What a search needs that can only judge whole images.
        log2_sum: One window after the other: sum (n_i!), the number that the paper prints. What a search needs that can
            judge each window alone.
    """

    log2_product: float
    log2_sum: float


def key_count(window_areas: Iterable[int], channels: int = 1) -> Keys:
    """Counts the ways to shuffle windows of the given numbers of pixels, each channel on its own (section V-C)."""
    logs = torch.tensor([math.lgamma(area + 1) for area in window_areas], dtype=torch.float64) / math.log(2)
    log_sum = float(torch.logsumexp(logs * math.log(2), 0)) / math.log(2)
    return Keys(channels * float(logs.sum()), log_sum + math.log2(channels))


def vfe_law(window: int, height: int, width: int) -> tuple[float, float]:
    """The paper's normal law of an image's VFE / (2 sigma^2), mean over windows (equation 12).

    The mean is exact for shuffled pixels; the variance is not: it treats all differences as independent, see
    ``shuffled_vfe_variance``. The paper drops the factor 2 sigma^2 after equation 10; these are the units that remain.

    Args:
        window: WS in pixels.
        height: H in pixels.
        width: W in pixels.

    Returns:
        Mean 2 WS (WS - 1) and variance 4 WS^3 (WS - 1) / (H W).
    """
    return 2.0 * window * (window - 1), 4 * window**3 * (window - 1) / (height * width)


def shuffled_vfe_variance(window: int, kurtosis: float | None = None) -> float:
    """Exact variance of VFE_R / (2 sigma^2) over all permutations of a square window's pixels.

    Divided by the number of pairs E, that quantity is Geary's C on the grid with n = WS^2 pixels, of known variance:

        Var = [(n-1)(n^2-3n+3-(n-1)b) E - (n-1)(n^2+3n-6-(n^2-n+2)b) D/4 + (n^2-3-(n-1)^2 b) E^2] / (n(n-2)(n-3))

    where b is the kurtosis and D the sum of squared neighbour counts. For bell-shaped pixels it is near 2 WS (WS - 1),
    half of the paper's chi-square value, because the pixels of a window are a fixed set.

    Source: Cliff, Ord, "Spatial Processes: Models and Applications" (1981), randomisation moments of Geary's C.

    Args:
        window: WS in pixels, 1 or more.
        kurtosis: Fourth central moment of the pixels over their squared variance, both with n; at least 1. Above what n
            pixels can have, it counts as that. By default 3 (n - 1) / (n + 1), the mean over normal samples.

    Returns:
        The variance, dimensionless; 0 for a single pixel.
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


def window_lower_bound(target: float, z: float = 0.0, num_windows: int = 1, kurtosis: float | None = None) -> int:
    """WS_l: the smallest window whose shuffled VFE reaches a target (section IV-B).

    With z = 0 the mean must reach it: ceil((1 + sqrt(1 + 2 V)) / 2). Else 2 WS (WS - 1) - z sd must, where sd is of the
    mean over ``num_windows`` windows; 1 asks it of every single window.

    Args:
        target: V, the wanted VFE / (2 sigma^2), 0 or more.
        z: Standard deviations of safety, 0 or more.
        num_windows: Windows that the VFE is averaged over.
        kurtosis: See ``shuffled_vfe_variance``.

    Raises:
        ValueError: When an argument is out of range.
    """
    if not (0 <= target < math.inf and 0 <= z < math.inf and num_windows >= 1):
        raise ValueError(f"target {target}, z {z}, num_windows {num_windows}; allowed: 0 or more, 0 or more, 1 or more")
    window = 1
    while pair_count(window, window) - z * math.sqrt(shuffled_vfe_variance(window, kurtosis) / num_windows) < target:
        window += 1
    return window


def window_upper_bound(
    generator: torch.Generator,
    d: float = 5.0,
    alpha: float = 0.5,
    estimator: str = "exact",
    strict: bool = False,
    num_samples: int = 200_000,
) -> int:
    """WS_u = 3 + 2 floor(m): the largest window whose output changes by at most d with probability alpha (equation 17).

    A window of 3 does so with probability alpha_0 (``within_probability``). The paper says that a window of 3 + 2m has
    m^2 outputs, alpha = alpha_0^(m^2), so m = sqrt(log alpha / log alpha_0); but m = 0 has one output, not none.

    Args:
        generator: CPU generator.
        d: Tolerated output change in standard deviations of a weight; the paper gives no value.
        alpha: Wanted probability, in (0, 1); the paper gives no value.
        estimator: See ``within_probability``; the choice changes the bound by an order of magnitude.
        strict: Count (m + 1)^2 outputs.
        num_samples: Kernels drawn. The defaults give a standard error of alpha_0 of 0.0003.

    Raises:
        ValueError: When no window qualifies, or all do as far as the sample can tell, or an argument is out of range.
    """
    if not 0 < alpha < 1:
        raise ValueError(f"alpha is {alpha}; allowed: above 0 and below 1")
    base = within_probability(d, estimator, generator, num_samples)
    if base in (0.0, 1.0):
        known = "every" if base else "no"
        raise ValueError(
            f"{known} sampled kernel stays within d = {d}, so the bound is unknown; change d or num_samples"
        )
    m = math.sqrt(math.log(alpha) / math.log(base)) - strict
    if m < 0:
        raise ValueError(f"a window of 3 stays within d = {d} with probability {base:.4f} only; lower alpha or raise d")
    return 3 + 2 * math.floor(m)


def within_probability(d: float, estimator: str, generator: torch.Generator, num_samples: int = 200_000) -> float:
    """alpha_0 = P(change <= d), by Monte Carlo over 2 x 2 kernels of independent standard normal weights.

    The output B is a 2 x 2 convolution of a 3 x 3 window in [0, 1] followed by a 2 x 2 max-pooling (equations 13-15).
    The change between a window and its shuffled version is estimated as

    - "exact": max B - min B over all 512 binary windows, as the paper enumerates. B is convex, so its maximum is binary
      but its minimum need not be: over windows in [0, 1], a linear programme for 20,000 kernels gives alpha_0 = 0.977
      instead of 0.982 at d = 5, hence WS_u = 13 instead of 15;
    - "sum": the sum of absolute weights, the bound that equations 13 and 14 give; never below "exact";
    - "perm": as "exact", among windows with equally many ones, which is what a shuffle can reach;
    - "pairs": |B - B'| for two random binary windows, a typical change and not a bound.

    Equation 16 of the paper integrates w1 + w2 over a truncated density, which neither agrees with equation 15 nor is
    the law of ordered weights; it is not offered.

    Raises:
        ValueError: When ``estimator`` is unknown or ``num_samples`` is below 1.
    """
    if estimator not in ESTIMATORS or num_samples < 1:
        raise ValueError(
            f"estimator {estimator!r}, num_samples {num_samples}; allowed: {', '.join(ESTIMATORS)}; 1 or more"
        )
    within = 0
    for start in range(0, num_samples, 1000):  # 512 outputs per kernel: 2 MB at a time stay in the processor's cache.
        weights = torch.randn(min(1000, num_samples - start), 4, generator=generator)
        within += int((output_change(weights, estimator, generator) <= d).sum())
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


def output_table() -> dict[str, int]:
    """Table I: how often each sum of weights is the output B, over 512 binary windows and 5 sign classes (2560 cases).

    A regression check of the paper's table, not a law: it gives each sign class the same weight, and depends on which
    weights lie opposite each other (see the source), while Gaussian kernels do not.

    Returns:
        Counts for all 16 sums, named "0", "w1", ..., "w1 + w2 + w3 + w4".
    """
    names = ["w1", "w2", "w3", "w4"]
    counts: Counter[str] = Counter()
    for values, opposite in _TABLE_KERNELS:
        # Row-major (w1, x, y, opposite); x and y are interchangeable, because transposing all windows changes no count.
        order = [0, *(i for i in (1, 2, 3) if i != opposite - 1), opposite - 1]
        outputs = window_outputs(torch.tensor([[float(values[i]) for i in order]])).squeeze(1)
        label = {
            sum(compress(values, chosen)): " + ".join(compress(names, chosen)) or "0"
            for chosen in product((0, 1), repeat=4)
        }
        counts.update(label[int(output)] for output in outputs)
    return dict(counts)


def _binary_windows() -> Tensor:
    return torch.tensor(list(product((0, 1), repeat=9))).view(512, 3, 3)
