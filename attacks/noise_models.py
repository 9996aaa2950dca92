"""Gradient inversion that models what an update defence did: its noise, or its mask."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch

from attacks.base import ClientUpdate, Knowledge, Reconstruction
from attacks.gradient_inversion import GradientInversion
from defenses.checks import is_number, require
from defenses.noise import GaussianNoise, LaplaceNoise

PIXEL_SCALE = 0.3
"""Typical |difference| of neighbouring pixels, in normalised units: the scale of the Laplace prior behind total variation."""


@dataclass(frozen=True, repr=False)
class NoiseModelInversion(GradientInversion):
    """The most probable images given an update with additive noise of known law.

        argmin_x  |g(x) - g|^2 / (2 s^2) + sum |dx| / PIXEL_SCALE        for N(0, s^2) on every entry of the gradient,
        argmin_x  |g(x) - g|_1 / s       + sum |dx| / PIXEL_SCALE        for Laplace(0, s),

    multiplied by 2 s^2 or s, so that without noise it is plain matching. The prior gains weight exactly as the noise does, and
    entries of the gradient that the noise drowned count as little as they should; cosine matching with a fixed prior does neither.

    Attributes:
        noise_std: Of the noise on the *update*, as the defence states it (for Laplace: its scale); 0 without noise. ``fit`` takes
            it, and the cost, from the pipeline; several stages of noise add up in variance.

    The rest as in ``GradientInversion``. Source: the maximum a posteriori view of Balunovic et al. 2022, section 3; ours in detail.
    """

    source: ClassVar[str] = "Balunovic 2022 (Bayesian framework for gradient leakage), section 3"
    threat: ClassVar[str] = "as GradientInversion, and the law and strength of the noise"

    cost: str = "l2"
    optimizer: str = "lbfgs"
    signed: bool = False
    learning_rate: float = 1.0
    iterations: int = 400
    restarts: int = 1
    total_variation: float = 0.0
    step_decay: bool = False
    line_search: bool = True
    noise_std: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        noise = self.noise_std
        require(is_number(noise) and 0 <= noise < float("inf"), self, "noise_std", "a number of at least 0")

    def fit(self, knowledge: Knowledge, generator: torch.Generator) -> NoiseModelInversion:
        """The attack for the pipeline's noise."""
        stages = knowledge.pipeline.defenses
        gaussian = sum(stage.std**2 for stage in stages if isinstance(stage, GaussianNoise))
        laplace = sum(stage.scale for stage in stages if isinstance(stage, LaplaceNoise))
        if laplace and not gaussian:
            return replace(self, cost="l1", noise_std=float(laplace))
        # The variance of Laplace(0, s) is 2 s^2.
        return replace(self, noise_std=float((gaussian + 2 * laplace**2) ** 0.5))

    def attack_many(
        self, observations: Sequence[ClientUpdate], generators: Sequence[torch.Generator]
    ) -> list[Reconstruction]:
        """As ``GradientInversion``, each observation with the prior that its noise asks for."""
        groups: dict[float, list[int]] = {}
        for at, observation in enumerate(observations):
            groups.setdefault(self._prior(observation), []).append(at)
        guesses: dict[int, Reconstruction] = {}
        for prior, members in groups.items():
            inversion = GradientInversion.attack_many
            chosen = replace(self, total_variation=prior)
            found = inversion(chosen, [observations[at] for at in members], [generators[at] for at in members])
            guesses.update(zip(members, found, strict=True))
        return [guesses[at] for at in range(len(observations))]

    def _prior(self, observation: ClientUpdate) -> float:
        """Weight of the mean total variation; see the class."""
        rate = observation.learning_rate
        # Without a known rate the noise on the gradient is unknown as well.
        if not self.noise_std or rate is None or rate <= 0 or observation.local_steps < 1:
            return self.total_variation
        noise = self.noise_std / (rate * observation.step_length * observation.local_steps)
        scale = noise if self.cost == "l1" else 2 * noise**2
        count = min(observation.num_examples, self.max_images)
        return scale * count * torch.Size(observation.input_shape).numel() / PIXEL_SCALE


@dataclass(frozen=True, repr=False)
class MaskedInversion(GradientInversion):
    """Matches only those entries of the gradient that pruning left: a zero entry is a missing one, not a small one.

    Otherwise ``InvertingGradients``. Without pruning, hardly an entry is zero, and the two are the same.
    """

    source: ClassVar[str] = "Huang 2021 (evaluating gradient inversion), section 3.1; Geiping 2020, Eq. 4"
    threat: ClassVar[str] = "as GradientInversion, and that zero entries were pruned"

    cost: str = "masked-cosine"
    iterations: int = 600
    total_variation: float = 1e-2
    prior_decay: bool = True
