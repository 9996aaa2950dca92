"""The black-box attack of the patch-shuffling paper: a transformer that maps smashed data to images."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import nn

from attacks.descent import step_down
from attacks.networks.decoder import DecoderNetwork, Layout
from attacks.sender import Sender
from attacks.smashed.decoder_training import DecoderAttack, Draw, tells_slots
from defenses.checks import MOST_DEPTH, require, whole_field

WARM_UP = 40
"""Steps over which the learning rate rises, as in the paper."""


@dataclass(frozen=True, repr=False)
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
