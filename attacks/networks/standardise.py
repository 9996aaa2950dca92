"""A layer that standardises the inputs of a network by the mean and the standard deviation of a sample."""

from torch import Tensor, nn


class Standardise(nn.Module):
    """Subtracts a mean and divides by a standard deviation, tensors that broadcast to the values."""

    def __init__(self, mean: Tensor, std: Tensor) -> None:
        super().__init__()
        self.mean, self.std = nn.Buffer(mean), nn.Buffer(std)

    def forward(self, values: Tensor) -> Tensor:
        """As many values, of the same shape."""
        return (values - self.mean) / self.std


def standardise_tokens(sample: Tensor) -> Standardise:
    """Make the layer for tokens (B, N, D), each entry for itself, from a sample of them."""
    return Standardise(sample.mean((0, 1)), raised(sample.std((0, 1))))


def raised(std: Tensor) -> Tensor:
    """Standard deviations, at least 1e-3 of the largest: a feature that hardly changes is not blown up."""
    return std.clamp(min=max(1e-3 * float(std.max()), 1e-12))
