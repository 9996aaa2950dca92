"""Smashed data to images by a conditional GAN."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from attacks.descent import step_down
from attacks.networks.decoder import Layout, redraw
from attacks.networks.standardise import standardise_tokens
from attacks.networks.unet import UNet
from attacks.sender import Sender
from attacks.smashed.decoder_training import DecoderAttack, Draw
from defenses.checks import algorithm

L1_WEIGHT = 100.0
"""Of the absolute error, for images in [-1, 1], against the adversarial loss."""


class TokenMap(nn.Module):
    """Lays tokens out as an image: (B, N, D) -> (B, W, H, W'), each token spread over its patch by a transposed convolution."""

    def __init__(self, sample: Tensor, layout: Layout, width: int, generator: torch.Generator) -> None:
        super().__init__()
        self.grid = layout.grid
        self.standardise = standardise_tokens(sample)
        size = layout.patch_size
        with torch.random.fork_rng(devices=[]):
            self.spread = nn.ConvTranspose2d(sample.shape[2], width, size, size)
        redraw(self, generator)

    def forward(self, tokens: Tensor) -> Tensor:
        """See the class."""
        spread: Tensor = self.spread(self.standardise(tokens).transpose(1, 2).unflatten(2, self.grid))
        return spread


class Translator(nn.Module):
    """The generator: tokens (B, N, D) -> images (B, C, H, W) in [0, 1], through a U-Net and tanh."""

    def __init__(self, sample: Tensor, layout: Layout, width: int, generator: torch.Generator) -> None:
        super().__init__()
        width = max(width, layout.channels)  # the U-Net adds to its first C channels
        self.map = TokenMap(sample, layout, width, generator)
        self.unet = UNet(width, layout.channels, width, generator)

    def forward(self, tokens: Tensor) -> Tensor:
        """See the class."""
        images: Tensor = (torch.tanh(self.unet(self.map(tokens))) + 1) / 2
        return images


class PatchJudge(nn.Module):
    """The discriminator: tokens and an image -> a logit for every region of the image, (B, 1, h, w)."""

    def __init__(self, sample: Tensor, layout: Layout, width: int, generator: torch.Generator) -> None:
        super().__init__()
        self.map = TokenMap(sample, layout, width, generator)
        with torch.random.fork_rng(devices=[]):
            self.layers = nn.Sequential(
                nn.Conv2d(width + layout.channels, width, 4, 2, 1),
                nn.LeakyReLU(0.2),
                nn.Conv2d(width, 2 * width, 4, 2, 1),
                nn.GroupNorm(1, 2 * width),
                nn.LeakyReLU(0.2),
                nn.Conv2d(2 * width, 1, 3, 1, 1),
            )
        redraw(self.layers, generator)

    def forward(self, tokens: Tensor, images: Tensor) -> Tensor:
        """See the class."""
        logits: Tensor = self.layers(torch.cat([self.map(tokens), images], 1))
        return logits


@algorithm
class Pix2Pix(DecoderAttack):
    """Decode smashed data to images by a conditional GAN: a U-Net as generator and a discriminator of image regions.

    The generator minimises ``L1_WEIGHT`` times the absolute error plus the adversarial loss. The discriminator sees the smashed
    data and the image. A transposed convolution spreads tokens over their patches. Every batch is sent anew. A GAN returns likely
    images rather than the mean of all possible images: sharper, but with a lower PSNR. Differs from the paper's U-Net-256 in
    size: two halvings, group normalisation, no dropout.

    Attributes:
        iterations: Steps of both networks.
        width: Channels of both networks at full resolution.
        learning_rate: Learning rate of Adam, with betas (0.5, 0.999).
    """

    source = (
        "Isola et al., Image-to-Image Translation with Conditional Adversarial Networks, 2017; used by Yao et al., ICDM 2022, "
        "Table IX"
    )

    iterations: int = 200
    width: int = 12
    learning_rate: float = 2e-4

    def train(self, sender: Sender, draw: Draw, layout: Layout, generator: torch.Generator) -> nn.Module:
        """Train both networks and keep the generator."""
        sample, _ = draw()
        translator = Translator(sample, layout, self.width, generator).to(sample.device)
        judge = PatchJudge(sample, layout, self.width, generator).to(sample.device)
        draws, judges = (
            torch.optim.Adam(network.parameters(), self.learning_rate, betas=(0.5, 0.999))
            for network in (translator, judge)
        )
        for _ in range(self.iterations):
            tokens, clean = draw()
            drawn = translator(tokens)
            # Half of the discriminator's loss, which slows it down against the generator (section 3.3).
            step_down(judges, (_judged(judge(tokens, clean), 1.0) + _judged(judge(tokens, drawn.detach()), 0.0)) / 2)
            error = 2 * (drawn - clean).abs().mean()  # twice, as if images were in [-1, 1]
            step_down(draws, _judged(judge(tokens, drawn), 1.0) + L1_WEIGHT * error)
        return translator


def _judged(logits: Tensor, real: float) -> Tensor:
    return F.binary_cross_entropy_with_logits(logits, torch.full_like(logits, real))
