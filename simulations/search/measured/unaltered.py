"""Policies that leave most images as they are: a hybrid with one keeps accuracy, and protects only the images of its others."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field

from torch import Tensor

from clients.data.images import to_float
from defenses.images.ats import Policy, transform_images
from defenses.random_draws import generator_for
from simulations.search.measured.settings import Measured

IMAGES = 100
ALIKE = 1e-3
"""Mean squared difference of two images in [0, 1] up to which they are the same to a viewer: a PSNR of 30 dB."""
MOST = 0.5
"""Largest share of images that a policy may leave as they are."""


@dataclass(frozen=True)
class Sample:
    """Images of a search on which policies are tried.

    Attributes:
        images: (N, C, H, W) in [0, 1].
        seed: Of the signs that transforms draw.
    """

    images: Tensor
    seed: int
    _shares: dict[Policy, float] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    @functools.lru_cache(maxsize=4)
    def of(cls, search: Measured, dataset: str) -> Sample:
        """The first images of a data set, which are of all classes alike."""
        images = search.scoring(dataset).plan().load_data().train.images[:IMAGES]
        return cls(to_float(images), search.seed)

    @property
    def channels(self) -> int:
        """Of the images."""
        return int(self.images.shape[1])

    def unaltered(self, policy: Policy) -> float:
        """Share of the images that a policy leaves as they are: ``ALIKE``."""
        if policy not in self._shares:
            generator = generator_for("measured-search", self.seed, "unaltered", *policy)
            changed = transform_images(self.images, (policy,), use_prob=False, generator=generator)
            alike = (changed - self.images).square().flatten(1).mean(1) <= ALIKE
            self._shares[policy] = float(alike.float().mean())
        return self._shares[policy]

    def altered_by(self, policies: tuple[Policy, ...]) -> bool:
        """Whether every one of these policies alters at least half of the images."""
        return all(self.unaltered(policy) <= MOST for policy in policies)
