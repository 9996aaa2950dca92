"""The black-box attack of the patch-shuffling paper: a transformer that maps smashed data, or means of them, to images."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from attacks.descent import step_down
from attacks.networks.decoder import DecoderNetwork, Layout
from attacks.sender import Sender
from attacks.smashed.decoder_training import (
    DecoderAttack,
    Draw,
    Pool,
    independent_transmissions,
    mean_of_transmissions,
    tells_slots,
)
from defenses.checks import MOST_DEPTH, algorithm, examples_field, flag_field, require, whole_field

WARM_UP = 40
"""Steps over which the learning rate rises, as in the paper."""


GROUPS_AT_ONCE = 8
"""Groups of images whose transmissions are held in memory together; also those that are sent together."""


@algorithm
class TokenDecoder(DecoderAttack):
    """Decode smashed data to images by a transformer, trained on smashed data of auxiliary images by squared error.

    The clients' own algorithm sends every training batch with new draws, so that the decoder memorises no shuffle and also undoes
    input defences as far as possible. If the defences leave tokens in their slots (the attacker sees this from its own images),
    the decoder uses the slots, as in the paper. If they shuffle, it treats tokens as a set (see ``DecoderNetwork``), because
    random slots would only add noise.

    The paper's own decoder is a ViT-B/16 (768 wide, 12 blocks, 12 heads), trained on the private training set with a learning
    rate of 1.5e-5 (1.5e-4 in its code) over 50 epochs with batches of 50. The fields allow this size; here only public images are
    used.

    Attributes:
        iterations: Steps of AdamW; 40 of warm-up, then a cosine to zero.
        width: Length of a token inside the decoder.
        depth: Transformer blocks.
        heads: Attention heads, which divide ``width``.
    """

    source = "Yao et al., Privacy-Preserving Split Learning via Patch Shuffling, ICDM 2022, Eq. 3 (black-box); He et al. 2022 (MAE)"

    depth: int = whole_field(3, 1, MOST_DEPTH)
    heads: int = whole_field(4, 1, MOST_DEPTH)

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.width % self.heads == 0, self, "heads", f"a divisor of width = {self.width}")

    def train(self, sender: Sender, draw: Draw, layout: Layout, generator: torch.Generator) -> nn.Module:
        """Train by squared error: AdamW with betas (0.9, 0.95), a warm-up, then a cosine to zero."""
        as_set = not tells_slots(sender, draw()[1], generator)
        sample, _ = draw()
        network = DecoderNetwork(
            sample, layout, width=self.width, depth=self.depth, heads=self.heads, as_set=as_set, generator=generator
        ).to(sample.device)
        optimizer = torch.optim.AdamW(network.parameters(), self.learning_rate, betas=(0.9, 0.95), weight_decay=0.0)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, self._rate)
        for _ in range(self.iterations):
            inputs, clean = draw()
            loss = (network(inputs) - clean).square().mean()
            step_down(optimizer, loss, schedule)
        return network

    def _rate(self, step: int) -> float:
        progress = max(step - WARM_UP, 0) / max(self.iterations - WARM_UP, 1)
        return min((step + 1) / WARM_UP, (1 + math.cos(math.pi * progress)) / 2)


@algorithm
class FeatureAveraging(TokenDecoder, quick={**TokenDecoder.profile.quick, "transmissions": 3, "num_images": 32}):
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
