"""Gaussian noise on smashed data, with and without a bound on the contribution of one example."""

import math
from dataclasses import replace
from typing import Self

import torch
from torch import Tensor

from defenses.base import SmashedDefense
from defenses.checks import Multiplier, Noise, Probability, Scale, algorithm
from defenses.functional import clip_factors, gaussian_like, widened
from defenses.neighbours import BUDGET, REPLACE_ONE, SENSITIVITY
from defenses.smashed.gaussian_mechanism import gaussian_epsilon
from defenses.tensors import Numbers

AGAINST_NOISE = ("FeatureAveraging", "FieldReading", "AttributeInference", "InverseNetwork")


@algorithm
class FeatureNoise(SmashedDefense):
    """Add N(0, std^2) to every entry of the smashed data, with a new draw for each transmission.

    The baseline "GN" of the patch-shuffling paper, which writes N(0, 4) and uses the number as standard deviation. Features
    are not bounded, so that no privacy budget follows (see ``FeatureDP`` for one). The mean of e transmissions of an image has
    noise of std / sqrt(e).

    Args:
        std: Standard deviation in the unit of the features. 0 changes nothing.
    """

    std: Noise = 4.0

    no_defense_at = {"std": 0}
    always_shown = ("std",)
    source = "Yao et al., Privacy-Preserving Split Learning via Patch Shuffling, ICDM 2022, VI (baseline GN)"
    at_inference = True
    takes_maps = True
    adaptive_attacks = AGAINST_NOISE

    def protect_features(self, features: Tensor, generator: torch.Generator) -> Tensor:
        """Add the noise."""
        return features + gaussian_like(features, self.std, generator)

    def without_noise(self) -> Self:
        """The defence with a standard deviation of 0."""
        return replace(self, std=0.0)


@algorithm
class FeatureDP(SmashedDefense):
    """Clip the smashed data of each example to L2 norm C and add N(0, (z C)^2): the Gaussian mechanism.

        h~ = h min(1, C / ||h||_2) + N(0, (z C)^2 I),    h: all numbers of one example

    One transmission of an example's features is (epsilon, delta)-differentially private, with epsilon from ``epsilon``. Each
    pass of training that reaches an example is one release. Audit batches are further releases (the row "epsilon-with-probes"),
    and so is a test image in every evaluation.

    The guarantee does not cover labels. ``Pipeline`` refuses features that depend on several examples, as after a batch shuffle.
    Training the client half is refused too, because its update depends on the examples without a bound; this is allowed with
    ``noise_multiplier`` 0, which claims nothing. The noise is pseudo-random but not cryptographic (see ``generator_for``), and
    not exactly Gaussian; the guarantee holds up to these two limits.

    Args:
        clip: C, in the unit of the features.
        noise_multiplier: z; 0 only clips and has no finite epsilon.
        delta: delta of the guarantee, in (0, 1).

    Neighbours ("replace-one"): one example against any other, whose features differ by up to 2 C. The number of examples is
    public, as the server counts the features that it receives. The paper states epsilon = 6.68 for its baseline "DP", but not its
    clipping norm, delta or neighbours.
    """

    clip: Scale = 1.0
    noise_multiplier: Multiplier = 1.0
    delta: Probability = 1e-5

    neighbours = REPLACE_ONE
    bounds_examples = True
    always_shown = ("clip", "noise_multiplier")
    source = "Balle and Wang, Improving the Gaussian Mechanism, ICML 2018, Theorem 8; baseline DP of Yao et al., ICDM 2022, VI"
    at_inference = True
    takes_maps = True
    adaptive_attacks = AGAINST_NOISE

    def epsilon(self, releases: int = 1) -> float:
        """Exact epsilon at ``delta`` of sending the features of one example ``releases`` times; inf without noise.

        With independent Gaussian noise, the releases equal one release of sqrt(releases) times the sensitivity.
        """
        if releases == 0:
            return 0.0
        if self.noise_multiplier == 0:
            return math.inf
        sensitivity = SENSITIVITY[self.neighbours] * math.sqrt(releases)
        return gaussian_epsilon(sensitivity / self.noise_multiplier, self.delta)

    def privacy(self, releases: int) -> Numbers:
        """``epsilon`` and ``delta`` with their terms; see the base class."""
        terms = {
            "noise-multiplier": self.noise_multiplier,
            "clipping-norm": self.clip,
            "sample-rate": 1.0,
            "steps": releases,
        }
        named = {f"{BUDGET}{name}": value for name, value in terms.items()}
        return {"epsilon": self.epsilon(releases), "delta": self.delta} | named

    def protect_features(self, features: Tensor, generator: torch.Generator) -> Tensor:
        """Clip each example and add the noise."""
        return clip_examples(features, self.clip) + gaussian_like(
            features, self.noise_multiplier * self.clip, generator
        )

    def without_noise(self) -> Self:
        """The defence that only clips."""
        return replace(self, noise_multiplier=0.0)


def clip_examples(features: Tensor, clip: float) -> Tensor:
    """Scale each example by min(1, C / ||h||_2), with one norm over all its numbers: (B, ...) -> (B, ...).

    An example whose norm is not finite counts as zero, so that the server cannot learn of it by weights that make it overflow.
    """
    exact = widened(features).flatten(1)
    overflows = clip_factors(exact.detach().norm(dim=1), clip) == 0
    exact = exact.masked_fill(overflows[:, None], 0.0)
    clipped = exact * clip_factors(torch.linalg.vector_norm(exact, dim=1), clip)[:, None]
    return clipped.view(features.shape).to(features.dtype)
