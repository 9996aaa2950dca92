"""Averaging of noise over many transmissions of the same images."""

from __future__ import annotations

from dataclasses import dataclass

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
    """Average R transmissions of the same images to reduce noise, and decode the mean by a transformer trained on such means.

    Averaging reduces independent noise of standard deviation s to s / sqrt(R). The server also sends auxiliary images R times, once
    before the training, so that the decoder learns the remaining noise. The attack is useless against shuffles: means of shuffled
    tokens are all alike.

    Attributes:
        transmissions: Largest R; the attack uses, and trains on, as many as the run makes.
        num_images: Most auxiliary images to send R times each for the training.
    """

    source = "Yao et al., Privacy-Preserving Split Learning via Patch Shuffling, ICDM 2022, adaptive attack on GN (60 rounds)"
    threat = (
        "smashed data of the same images in many epochs; the client half as a black box; the defences' algorithm; auxiliary "
        "images like the clients'"
    )
    quick = {**TokenDecoder.quick, "transmissions": 3, "num_images": 32}

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
