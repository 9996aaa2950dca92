"""A small transformer from smashed data to images, which reads tokens at their slots or as a set without order."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from attacks.networks.standardise import standardise_tokens


@dataclass(frozen=True)
class Layout:
    """How an image is cut into patches of ``patch_size`` pixels a side, one for each token of a ``grid`` of rows and columns."""

    grid: tuple[int, int]
    patch_size: int
    channels: int

    @property
    def num_tokens(self) -> int:
        """N."""
        return self.grid[0] * self.grid[1]

    @property
    def patch_values(self) -> int:
        """Numbers in a patch."""
        return self.channels * self.patch_size**2

    def fold(self, patches: Tensor) -> Tensor:
        """Puts patches together, row by row: (B, N, C * p * p) -> (B, C, H, W)."""
        height, width = (count * self.patch_size for count in self.grid)
        return F.fold(patches.transpose(1, 2), (height, width), self.patch_size, stride=self.patch_size)


class DecoderNetwork(nn.Module):
    """Smashed data (B, N, D) -> images (B, C, H, W) in [0, 1].

    Tokens are standardised and embedded; ``depth`` blocks, a layer norm and a linear layer make the pixels of every patch,
    which tanh bounds and which are put together.

    Two ways of reading. At *slots*, token i gets a learned embedding of position i and becomes patch i: the decoder of the
    paper. As a *set*, tokens get no position; N learned queries, one for each patch, are put in front of them (the mask tokens of
    a masked autoencoder), and only these become patches. The guess then is the same whatever the order of the tokens.

    Args:
        sample: (n, N, D) inputs, for sizes and statistics.
        layout: Of the patches.
        width: Length W of a token inside.
        depth: Blocks.
        heads: Attention heads, which divide ``width``.
        as_set: Read as a set, not at slots.
        generator: CPU generator of the initial weights.

    Source: He et al., "Masked Autoencoders Are Scalable Vision Learners", 2022 (decoder), as in the reference code of Yao et
    al., ICDM 2022, there with the sizes of ViT-B/16.
    """

    def __init__(
        self,
        sample: Tensor,
        layout: Layout,
        *,
        width: int,
        depth: int,
        heads: int,
        as_set: bool,
        generator: torch.Generator,
    ) -> None:
        from timm.models.vision_transformer import Block

        super().__init__()
        self.layout, self.as_set = layout, as_set
        self.standardise = standardise_tokens(sample)
        with torch.random.fork_rng(devices=[]):  # PyTorch's own initialisation, overwritten below, draws globally
            self.embed = nn.Linear(sample.shape[2], width)
            self.blocks = nn.Sequential(
                *(Block(width, heads, qkv_bias=True, norm_layer=nn.LayerNorm) for _ in range(depth))
            )
            self.head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, layout.patch_values), nn.Tanh())
        redraw(self, generator)
        self.positions = nn.Parameter(0.02 * torch.randn(layout.num_tokens, width, generator=generator))

    def forward(self, tokens: Tensor) -> Tensor:
        """Maps (B, N, D) to (B, C, H, W)."""
        embedded = self.embed(self.standardise(tokens))
        queries = self.positions.expand(len(tokens), -1, -1)
        placed = torch.cat([queries, embedded], 1) if self.as_set else queries + embedded
        patches: Tensor = self.head(self.blocks(placed)[:, : self.layout.num_tokens])
        return self.layout.fold((patches + 1) / 2)


def redraw(network: nn.Module, generator: torch.Generator) -> None:
    """Draws all weights of linear and convolutional layers anew from a CPU generator: Glorot and Bengio 2010, biases 0."""
    for layer in network.modules():
        if isinstance(layer, nn.Linear | nn.Conv2d | nn.ConvTranspose2d):
            nn.init.xavier_uniform_(layer.weight, generator=generator)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
