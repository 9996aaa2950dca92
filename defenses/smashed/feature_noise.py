"""Gaussian noise on smashed data: without and with a bound on what one example can change."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import torch
from torch import Tensor

from defenses.base import SmashedDefense
from defenses.checks import LEAST_MULTIPLIER, checked_field, choice_field, is_number, noise_field, scale_field
from defenses.functional import gaussian_like, widened
from defenses.neighbours import REPLACE_ONE, SENSITIVITY, ZERO_OUT
from defenses.smashed.gaussian_mechanism import gaussian_epsilon

AGAINST_NOISE = ("FeatureAveraging", "FieldReading", "AttributeInference", "InverseNetwork")


@dataclass(frozen=True, repr=False)
class FeatureNoise(SmashedDefense):
    """Adds N(0, std^2) to every entry of the smashed data, drawn afresh each time.

    The baseline "GN" of the shuffling paper, which writes N(0, 4) and uses the number as standard deviation. Features are
    not bounded, so no privacy budget follows (for that see ``FeatureDP``), and the mean of e transmissions of the same image
    has noise of std / sqrt(e).

    Args:
        std: Standard deviation in the unit of the features. 0 changes nothing.
    """

    std: float = noise_field(4.0)

    always_shown: ClassVar[tuple[str, ...]] = ("std",)
    source: ClassVar[str] = (
        "Yao et al., Privacy-Preserving Split Learning via Patch Shuffling, ICDM 2022, VI (baseline GN)"
    )
    at_inference: ClassVar[bool] = True
    takes_maps: ClassVar[bool] = True
    adaptive_attacks: ClassVar[tuple[str, ...]] = AGAINST_NOISE

    def protect_features(self, features: Tensor, generator: torch.Generator) -> Tensor:
        """Adds the noise."""
        return features + gaussian_like(features, self.std, generator)

    def without_noise(self) -> Self:
        """With a standard deviation of 0."""
        return replace(self, std=0.0)


@dataclass(frozen=True, repr=False)
class FeatureDP(SmashedDefense):
    """Clips the smashed data of every example to an L2 norm of C and adds N(0, (z C)^2): the Gaussian mechanism.

        h~ = h min(1, C / ||h||_2) + N(0, (z C)^2 I),    h: all numbers of one example

    What h~ reveals about the example is at most what (epsilon, delta)-differential privacy allows, with epsilon from ``epsilon``,
    for one transmission of its features. Training sends an example once in every pass that reaches it, and each is one release;
    audit batches are further ones (the row "epsilon-with-probes"), and a test image is released in every evaluation.

    It does not cover the labels; nor features that depend on several examples (a batch shuffle in front), which ``Pipeline``
    refuses; nor the update of a client half that is trained, which depends on the examples without any bound: such a run is
    refused, unless ``noise_multiplier`` is 0 and nothing is claimed. The noise is pseudo-random but not cryptographic (see
    ``generator_for``), and not exactly Gaussian: the bound holds up to both.

    Args:
        clip: C, in the unit of the features.
        noise_multiplier: z; 0 clips alone and has no finite epsilon.
        delta: In (0, 1).
        neighbours: What is hidden. "replace-one": which example was sent, against any other, so that features differ by up to
            2 C. "zero-out": the example against features of zero, up to C. One example more or less is hidden by neither: the
            server counts what it receives.

    The paper prints epsilon = 6.68 for its baseline "DP" but neither its clipping, its delta nor its neighbours.
    """

    clip: float = scale_field(1.0)
    noise_multiplier: float = noise_field(1.0, LEAST_MULTIPLIER)
    delta: float = checked_field(1e-5, lambda value: is_number(value) and 0 < value < 1, "a number in (0, 1)")
    neighbours: str = choice_field(REPLACE_ONE, (REPLACE_ONE, ZERO_OUT))

    bounds_examples: ClassVar[bool] = True
    always_shown: ClassVar[tuple[str, ...]] = ("clip", "noise_multiplier")
    source: ClassVar[str] = (
        "Balle and Wang, Improving the Gaussian Mechanism, ICML 2018, Theorem 8; baseline DP of Yao et al., ICDM 2022, VI"
    )
    at_inference: ClassVar[bool] = True
    takes_maps: ClassVar[bool] = True
    adaptive_attacks: ClassVar[tuple[str, ...]] = AGAINST_NOISE

    def epsilon(self, releases: int = 1) -> float:
        """The exact epsilon at ``delta`` of sending the features of one example ``releases`` times; inf without noise.

        Independent Gaussian noise on each makes them one release whose sensitivity is sqrt(releases) times as large.
        """
        if releases == 0:
            return 0.0
        if self.noise_multiplier == 0:
            return math.inf
        sensitivity = SENSITIVITY[self.neighbours] * math.sqrt(releases)
        return gaussian_epsilon(sensitivity / self.noise_multiplier, self.delta)

    def privacy(self, releases: int) -> dict[str, float]:
        """``epsilon`` and ``delta``; see the base class."""
        return {"epsilon": self.epsilon(releases), "delta": self.delta}

    def protect_features(self, features: Tensor, generator: torch.Generator) -> Tensor:
        """Clips and adds the noise."""
        return clip_examples(features, self.clip) + gaussian_like(
            features, self.noise_multiplier * self.clip, generator
        )

    def without_noise(self) -> Self:
        """Clips alone."""
        return replace(self, noise_multiplier=0.0)


def clip_examples(features: Tensor, clip: float) -> Tensor:
    """Scales every example by min(1, C / ||h||_2), with one norm over all of its numbers: (B, ...) -> (B, ...)."""
    exact = widened(features)
    norms: Tensor = torch.linalg.vector_norm(exact, dim=tuple(range(1, exact.dim())), keepdim=True)
    # A norm of zero is raised to C, not divided by.
    return (exact * (clip / norms.clamp(min=clip))).to(features.dtype)
