"""Inputs of a network with mean 0 and standard deviation 1, as on a sample."""

from __future__ import annotations

from torch import Tensor, nn


class Standardise(nn.Module):
    """Subtracts a mean and divides by a standard deviation, tensors that broadcast to the values."""

    def __init__(self, mean: Tensor, std: Tensor) -> None:
        super().__init__()
        self.mean, self.std = nn.Buffer(mean), nn.Buffer(std)

    def forward(self, values: Tensor) -> Tensor:
        """As many values, of the same shape."""
        standard: Tensor = (values - self.mean) / self.std
        return standard


def standardise_tokens(sample: Tensor) -> Standardise:
    """That of tokens (B, N, D), each entry for itself."""
    return Standardise(sample.mean((0, 1)), raised(sample.std((0, 1))))


def raised(std: Tensor) -> Tensor:
    """At least 1e-3 of the largest: a feature that hardly changes is no reason to blow up what little it does."""
    return std.clamp(min=max(1e-3 * float(std.max()), 1e-12))
