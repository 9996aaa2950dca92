"""Distances between images, and how rough an image is.

Images are (B, C, H, W) floating point; ``data_range`` is the distance between the smallest and largest possible value (1 for images
in [0, 1]). Each measure is one number per image. Attacks use them on images of their own; who scores a guess, on the truth.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

SSIM_WINDOW = 11
SSIM_SIGMA = 1.5


def mse(guess: Tensor, truth: Tensor) -> Tensor:
    """Mean squared error of each image: (B,), in squared units of the images."""
    _same_shape(guess, truth)
    return (guess - truth).square().flatten(1).mean(1)


def psnr(guess: Tensor, truth: Tensor, data_range: float = 1.0) -> Tensor:
    """Peak signal-to-noise ratio of each image: 10 log10(R^2 / MSE), (B,), in dB; ``inf`` where the images are equal."""
    return 10 * torch.log10(data_range**2 / mse(guess, truth))


def ssim(guess: Tensor, truth: Tensor, data_range: float = 1.0) -> Tensor:
    """Structural similarity of each image, averaged over pixels and channels: (B,), at most 1.

    With means mu, variances and covariance under a Gaussian window (11 x 11, sigma 1.5) that lies inside the image,

        SSIM = (2 mu_x mu_y + C1)(2 cov_xy + C2) / ((mu_x^2 + mu_y^2 + C1)(var_x + var_y + C2)),
        C1 = (0.01 R)^2,  C2 = (0.03 R)^2.

    Where an image is smaller than 11 pixels, the window shrinks to the largest odd size that fits each side, sigma stays 1.5 and
    the weights are normalised again (the paper and scikit-image leave this case undefined).

    Source: Wang, Bovik, Sheikh, Simoncelli, "Image quality assessment: from error visibility to structural similarity", 2004,
    Eq. 13; equal to ``skimage.metrics.structural_similarity(gaussian_weights=True, use_sample_covariance=False)``.
    """
    _same_shape(guess, truth)
    # Covariances are differences of nearly equal numbers, which single precision would lose on flat images.
    x, y = guess.double(), truth.double()
    mean_x, mean_y = _window_mean(x), _window_mean(y)
    var_x = _window_mean(x * x) - mean_x.square()
    var_y = _window_mean(y * y) - mean_y.square()
    covariance = _window_mean(x * y) - mean_x * mean_y
    c1, c2 = (0.01 * data_range) ** 2, (0.03 * data_range) ** 2
    similarity = (2 * mean_x * mean_y + c1) * (2 * covariance + c2)
    similarity = similarity / ((mean_x.square() + mean_y.square() + c1) * (var_x + var_y + c2))
    return similarity.flatten(1).mean(1).to(guess.dtype)


def total_variation(images: Tensor) -> Tensor:
    """Anisotropic total variation of each image: mean |x[h, w+1] - x[h, w]| + mean |x[h+1, w] - x[h, w]|, (B,).

    A side of one pixel has no neighbours and adds 0.
    """
    across = (images[..., :, 1:] - images[..., :, :-1]).abs().flatten(1)
    down = (images[..., 1:, :] - images[..., :-1, :]).abs().flatten(1)
    return across.sum(1) / max(across.shape[1], 1) + down.sum(1) / max(down.shape[1], 1)


def _window_mean(images: Tensor) -> Tensor:
    sizes = [min(SSIM_WINDOW, side - 1 + side % 2) for side in images.shape[-2:]]
    return smoothed(images, *(gaussian(size, SSIM_SIGMA, images) for size in sizes))


def gaussian(size: int, std: float, like: Tensor) -> Tensor:
    """Weights (size,) of a Gaussian window around its middle, summing to 1; dtype and device as ``like``."""
    at = torch.arange(size, dtype=like.dtype, device=like.device) - (size - 1) / 2
    weights = torch.exp(-0.5 * (at / std).square())
    return weights / weights.sum()


def smoothed(images: Tensor, down: Tensor, across: Tensor) -> Tensor:
    """Separable correlation of every channel, without padding."""
    flat = images.flatten(0, 1)[:, None]
    filtered = F.conv2d(F.conv2d(flat, down[None, None, :, None]), across[None, None, None, :])
    return filtered.view(*images.shape[:2], *filtered.shape[-2:])


def _same_shape(guess: Tensor, truth: Tensor) -> None:
    if guess.shape != truth.shape:
        raise ValueError(f"guess has shape {tuple(guess.shape)}, truth {tuple(truth.shape)}")
