"""Spectral shuffling (PS+): tokens are laid out as an image, which is sent as shuffled patches of its Fourier spectrum."""

import math
from typing import TypeVar

import torch
from torch import Tensor

from defenses.base import DefenseError, SmashedDefense
from defenses.checks import algorithm
from defenses.functional import widened
from defenses.smashed.patch_shuffle import gather_tokens, shuffled_within_images

Index = TypeVar("Index", int, Tensor)


def patch_side(dim: int) -> int:
    """p, the largest whole number whose square divides ``dim``, so that a token is a p x p patch of dim / p^2 planes.

    16 with 3 planes for the 768 of ViT-B, and the true patch for pixels of 1, 2 or 3 channels.
    """
    return max(side for side in range(1, math.isqrt(dim) + 1) if dim % side**2 == 0)


def to_planes(tokens: Tensor, patch: int) -> Tensor:
    """Lays tokens of a square grid, row by row, out as an image: (B, g * g, p * p * c) -> (B, c, g * p, g * p).

    The index inside of a token is (row, column, plane). p must not be guessed from the length of spectral tokens: these have twice
    the planes.
    """
    batch, num_tokens, dim = tokens.shape
    grid, planes = math.isqrt(num_tokens), dim // patch**2
    cells = tokens.reshape(batch, grid, grid, patch, patch, planes)
    return cells.permute(0, 5, 1, 3, 2, 4).reshape(batch, planes, grid * patch, grid * patch)


def to_tokens(planes: Tensor, patch: int) -> Tensor:
    """The inverse of ``to_planes``: (B, c, g * p, g * p) -> (B, g * g, p * p * c)."""
    batch, count, side, _ = planes.shape
    grid = side // patch
    cells = planes.reshape(batch, count, grid, patch, grid, patch)
    return cells.permute(0, 2, 4, 3, 5, 1).reshape(batch, grid**2, patch**2 * count)


def spectrum(planes: Tensor) -> Tensor:
    """Two-dimensional Fourier transform with the zero frequency in the middle: (B, c, S, S) -> (B, 2c, S, S).

    The first c planes are real parts, the others imaginary parts. Nothing is normalised, so the sum of squares grows by
    S^2, and the middle holds S^2 times the mean.
    """
    shifted = torch.fft.fftshift(torch.fft.fft2(widened(planes)), (-2, -1))
    return torch.cat([shifted.real, shifted.imag], 1).to(planes.dtype)


def from_spectrum(planes: Tensor) -> Tensor:
    """The inverse of ``spectrum``: (B, 2c, S, S) -> (B, c, S, S). What no real image has is dropped, not refused."""
    real, imaginary = widened(planes).chunk(2, 1)
    shifted = torch.fft.ifftshift(torch.complex(real.contiguous(), imaginary.contiguous()), (-2, -1))
    restored: Tensor = torch.fft.ifft2(shifted).real
    return restored.to(planes.dtype)


def mirror(index: Index, side: int) -> Index:
    """Row or column of frequency -f in ``spectrum``, where ``index`` is that of f: (2 floor(S / 2) - i) mod S.

    The spectrum X of a real image is Hermitian: X[mirror(i), mirror(j)] is the complex conjugate of X[i, j].
    """
    return (2 * (side // 2) - index) % side


@algorithm
class SpectralShuffle(SmashedDefense):
    """Cut the Fourier spectrum of each image's tokens into patches and send these in a random order (PS+).

    The N = g * g tokens become an image of g * p by g * p pixels (``to_planes``), its spectrum is cut into N patches of
    twice the length, and these are shuffled. No transformer block runs on the client. As with ``PatchShuffle`` only the
    order is hidden. Moreover half of the values are conjugates of the others, so that an attacker can pair patches; and
    energy falls with frequency, so that an attacker can place them.

    The number of tokens must be a square and their grid too. ``order`` counts spectral patches, not positions in the image.

    Transformed are embedded tokens, as in the paper's text and code; its figure 4 shows the image itself. The released code takes
    the spectrum without gradients and so cannot train the embedding; here gradients pass.
    """

    source = "Yao et al., Privacy-Preserving Split Learning via Patch Shuffling, ICDM 2022, figure 4 (PS+)"
    before_blocks = True
    edge_blocks = 0
    widening = 2
    at_inference = True
    adaptive_attacks = ("HermitianPairing", "AdaptiveDecoder")

    def check_batch(self, batch_size: int, num_tokens: int) -> None:
        """Refuse tokens that do not form a square image."""
        root = math.isqrt(num_tokens)
        if root**2 != num_tokens:
            raise DefenseError(
                f"{self} lays tokens out as a square image, and {num_tokens} is not a square; choose a patch size that "
                f"gives as many rows as columns, such as {root**2} or {(root + 1) ** 2} tokens"
            )

    def order(self, num_images: int, num_tokens: int, generator: torch.Generator) -> Tensor:
        """One uniform permutation of an image's spectral patches; see the base class."""
        return shuffled_within_images(num_images, num_tokens, generator)

    def protect_features(self, features: Tensor, generator: torch.Generator) -> Tensor:
        """Maps (B, N, D) tokens to their shuffled spectral patches (B, N, 2 * D)."""
        num_images, num_tokens, dim = features.shape
        self.check_batch(num_images, num_tokens)
        patch = patch_side(dim)
        spectral = to_tokens(spectrum(to_planes(features, patch)), patch)
        return gather_tokens(spectral, self.order(num_images, num_tokens, generator))
