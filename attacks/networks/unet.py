"""A small U-Net that maps images to images of the same size, whatever that size is."""

from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

MULTIPLE = 4
"""Sides are padded to multiples of this: two halvings."""


class UNet(nn.Module):
    """Convolutions at full, half and quarter resolution, with skip connections: (B, in_channels, H, W) -> (B, out_channels, H, W).

    What it learned is added to the first ``out_channels`` of its input (a residual output): before training it is the
    identity. Full resolution has one convolution each way, since these cost most; channels double at each halving. Initial weights
    are those of He et al. 2015, and zero for the last layer.

    Source: Ronneberger, Fischer, Brox, "U-Net", 2015, reduced to three resolutions, with group normalisation.
    """

    def __init__(self, in_channels: int, out_channels: int, width: int, generator: torch.Generator) -> None:
        super().__init__()
        self.out_channels = out_channels
        with torch.random.fork_rng(devices=[]):  # PyTorch's own initialisation, overwritten below, draws globally
            self.down_full = _convolutions(in_channels, width)
            self.down_half = _convolutions(width, 2 * width, 2 * width)
            self.quarter = _convolutions(2 * width, 4 * width, 4 * width)
            self.up_half = _convolutions(6 * width, 2 * width, 2 * width)
            self.up_full = _convolutions(3 * width, width)
            self.last = nn.Conv2d(width, out_channels, 3, padding=1)
        draw_convolutions(self, generator)
        for parameter in self.last.parameters():
            nn.init.zeros_(parameter)

    def forward(self, images: Tensor) -> Tensor:
        """Maps (B, in_channels, H, W) to (B, out_channels, H, W)."""
        height, width = images.shape[-2:]
        full = self.down_full(F.pad(images, (0, -width % MULTIPLE, 0, -height % MULTIPLE)))
        half = self.down_half(F.max_pool2d(full, 2))
        quarter = self.quarter(F.max_pool2d(half, 2))
        half = self.up_half(torch.cat([half, F.interpolate(quarter, scale_factor=2.0)], 1))
        full = self.up_full(torch.cat([full, F.interpolate(half, scale_factor=2.0)], 1))
        change: Tensor = self.last(full)
        return images[:, : self.out_channels] + change[..., :height, :width]


def draw_convolutions(network: nn.Module, generator: torch.Generator) -> None:
    """Draws the weights of all convolutions anew from a CPU generator: He et al. 2015, biases 0."""
    for layer in network.modules():
        if isinstance(layer, nn.Conv2d):
            draws = torch.randn(layer.weight.shape, generator=generator)
            layer.weight.data = draws * (2 / layer.weight[0].numel()) ** 0.5
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)


def _convolutions(*channels: int) -> nn.Sequential:
    """3 x 3 convolutions from each number of channels to the next, each with normalisation and ReLU."""
    layers: list[nn.Module] = []
    for before, after in pairwise(channels):
        layers += [nn.Conv2d(before, after, 3, padding=1, bias=False), nn.GroupNorm(1, after), nn.ReLU()]
    return nn.Sequential(*layers)
