"""Base of the server halves of split models."""

from torch import nn


class ServerHalf(nn.Module):
    """The server half of a split model: smashed data (B, N, D) -> logits (B, K)."""

    def fast_parameters(self) -> list[nn.Parameter]:
        """Parameters trained at ``learning-rate``, all unless some are pretrained; others have ``block-learning-rate``."""
        return list(self.parameters())
