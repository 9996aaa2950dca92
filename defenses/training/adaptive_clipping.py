"""Adaptive clipping: the clipping norm follows a quantile of the lengths of gradients, by counts with noise.

With z the account's noise multiplier, C the norm of a step and b_i = 1 where ||g_i|| <= C, else 0, a step releases

    sum_i g_i min(1, C / ||g_i||) + N(0, (s C)^2 I)    and    sum_i (b_i - 1/2) + N(0, (k z)^2)

where s = z / sqrt(1 - 1 / (2 k)^2). One example adds a vector of length at most C to the first and 1/2 in absolute value to the
second. Divided by their noise, both together are one vector of length at most

    sqrt(1 / s^2 + 1 / (2 k z)^2) = 1 / z

So each step is a sampled Gaussian mechanism of noise multiplier z. An example replaced by another moves the first by up to 2 C and
the second by up to 1, together by up to 2 / z, as without adaptive clipping. Both neighbours keep their account.

Source: Andrew, Thakkar, McMahan, Ramaswamy, "Differentially Private Learning with Adaptive Clipping" (NeurIPS 2021), Alg. 1 and
Theorem 1, for examples in place of clients. Opacus' ``AdaClipDPOptimizer`` divides by the number of drawn examples, which is
private.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

LEAST_COUNT_NOISE = 0.6
"""Of the count, in noise multipliers: at 0.5 the count alone would spend the whole account."""
FARTHEST = 1e4
"""Factor by which the norm leaves its start at most, up or down."""


def raised_noise(noise_multiplier: float, count_noise: float) -> float:
    """The noise multiplier of the gradients, s, with which gradients and count together have ``noise_multiplier``.

    Args:
        noise_multiplier: z, at least 0.
        count_noise: k, the standard deviation of the count's noise in units of z; above 0.5.
    """
    return noise_multiplier / math.sqrt(1 - 1 / (2 * count_noise) ** 2)


@dataclass
class AdaptiveNorm:
    """The clipping norm from step to step.

    The share of gradients within the norm is estimated as 1/2 plus the count over ``divisor``. This is public. With Poisson samples
    whose expected size is ``divisor``, the estimate is unbiased. Otherwise only a ``quantile`` of 1/2 is reached exactly.

    Attributes:
        norm: Of the current step.
        quantile: Share of gradients that are to be within the norm, in (0, 1).
        learning_rate: Of the norm's logarithm.
        count_noise: Of the count, in noise multipliers.
        divisor: Of the count: the expected number of examples in a step.
        start: The norm at the start of the whole training, which bounds ``norm``; see ``FARTHEST``.
        generator: On the CPU.
    """

    norm: float
    quantile: float
    learning_rate: float
    count_noise: float
    divisor: float
    start: float
    generator: torch.Generator
    _count: float = 0.0

    def measure(self, lengths: Tensor) -> None:
        """Count the gradients of a step, (B,) lengths, within the norm; a step that is not measured has no examples."""
        self._count = float((lengths <= self.norm).sum()) - len(lengths) / 2

    def move(self, noise_multiplier: float) -> float:
        """Make and return the norm of the next step, from the count with noise; ``noise_multiplier`` is the account's."""
        noise = torch.randn((), generator=self.generator, dtype=torch.float64)
        released = self._count + self.count_noise * noise_multiplier * float(noise)
        self._count = 0.0
        moved = math.log(self.norm) - self.learning_rate * (0.5 + released / self.divisor - self.quantile)
        low, high = math.log(self.start / FARTHEST), math.log(self.start * FARTHEST)
        self.norm = math.exp(min(max(moved, low), high))
        return self.norm
