"""A small network with GELUs."""

from __future__ import annotations

from torch import Tensor, nn


class GeluNet(nn.Module):
    """One convolution and a linear layer, for images of any size.

    Args:
        num_classes: Number of logits.
        input_shape: (C, H, W) of one image.
    """

    def __init__(self, num_classes: int, input_shape: tuple[int, int, int]) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(input_shape[0], 16, 3, padding=1), nn.GELU(), nn.AdaptiveAvgPool2d(4), nn.Flatten()
        )
        self.head = nn.Linear(256, num_classes)

    def forward(self, images: Tensor) -> Tensor:
        """Normalised images (B, C, H, W) -> logits (B, num_classes)."""
        logits: Tensor = self.head(self.features(images))
        return logits
