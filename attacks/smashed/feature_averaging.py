"""Averaging noise away over many transmissions of the same images."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from attacks.sender import Sender
from attacks.smashed.decoder_training import Draw, Pool, independent_transmissions, mean_of_transmissions
from attacks.smashed.tokens.decoder import TokenDecoder
from defenses.checks import examples_field, flag_field

GROUPS_AT_ONCE = 8
"""Groups of images whose transmissions are held in memory together; also those that are sent together."""


@dataclass(frozen=True, repr=False)
class FeatureAveraging(TokenDecoder):
    """Takes the mean of R transmissions of the same images, slot by slot, and decodes it with a ``TokenDecoder`` of such means.

    Independent noise of standard deviation s is left with s / sqrt(R). Auxiliary images are sent R times as well, once before
    the training, so that the decoder knows that noise. Means of shuffled tokens are all alike; that is not what it is for.

    Attributes:
        transmissions: R at most; it gets as many as the run makes, and learns from as many.
        num_images: Most auxiliary images to send R times each for the training.
    """

    source: ClassVar[str] = (
        "Yao et al., Privacy-Preserving Split Learning via Patch Shuffling, ICDM 2022, adaptive attack on GN (60 rounds)"
    )
    threat: ClassVar[str] = (
        "smashed data of the same images in many epochs; the client half as a black box; the defences' algorithm; auxiliary "
        "images like the clients'"
    )
    quick: ClassVar[Mapping[str, Any]] = {**TokenDecoder.quick, "transmissions": 3, "num_images": 32}

    iterations: int = 400
    transmissions: int = examples_field(60)
    num_images: int = examples_field(1000, 2)
    beyond_run: bool = flag_field(False)

    def pool_of(self, sender: Sender, images: Tensor, generator: torch.Generator) -> Pool:
        """The mean."""
        return mean_of_transmissions

    def draws(self, sender: Sender, images: Tensor, pool: Pool, generator: torch.Generator) -> Draw:
        """Pairs from a store of pooled transmissions, made once: sending R times at every step would be R times the price."""
        images = images[: self.num_images]
        parts = images.tensor_split(-(-len(images) // (GROUPS_AT_ONCE * self.batch_size // 2)))
        times, size = self.transmissions, self.batch_size
        inputs = torch.cat([pool(independent_transmissions(sender, part, times, size, generator)) for part in parts])

        def draw() -> tuple[Tensor, Tensor]:
            rows = torch.randperm(len(images), generator=generator)[:size].to(images.device)
            return inputs[rows], images[rows]

        return draw
