"""What every server half of a split model has."""

from __future__ import annotations

from torch import nn


class ServerHalf(nn.Module):
    """The server half of a split model: smashed data (B, N, D) -> logits (B, K)."""

    def fast_parameters(self) -> list[nn.Parameter]:
        """Those that are trained at ``learning-rate``; the others at ``block-learning-rate``. All where nothing is pretrained."""
        return list(self.parameters())
