"""Distances between images (B, C, H, W) in [0, 1], and how rough an image is: one number for each."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from defenses.tensors import Numbers, TensorMap

SSIM_WINDOW = 11
SSIM_SIGMA = 1.5
FLAT = 1e-6
"""Standard deviation, in units of the image, up to which an image counts as flat: rounding alone leaves as much."""
MS_SSIM_WEIGHTS = (0.0448, 0.2856, 0.3001, 0.2363, 0.1333)
"""Exponents of the scales, finest first."""


def mse(guess: Tensor, truth: Tensor) -> Tensor:
    """Mean squared error of each image: (B,), in squared units of the images."""
    _same_shape(guess, truth)
    return (guess - truth).square().flatten(1).mean(1)


def psnr(guess: Tensor, truth: Tensor) -> Tensor:
    """Peak signal-to-noise ratio of each image: 10 log10(1 / MSE), (B,), in dB; ``inf`` where the images are equal."""
    return 10 * torch.log10(1 / mse(guess, truth))


def mean_psnr(guess: Tensor, truth: Tensor) -> float:
    """``psnr`` over the images, in dB; at most 100 each, since no report can average infinity."""
    return float(psnr(guess, truth).clamp(max=100).mean())


def holdout_scores(guess: Tensor, truth: Tensor, learned_from: Tensor) -> Numbers:
    """Mean PSNR on images that were held out, and that of guessing the mean of the others."""
    return {
        "holdout_psnr": mean_psnr(guess, truth),
        "holdout_psnr_mean_image": mean_psnr(learned_from.mean(0).expand_as(truth), truth),
    }


def without_contrast(images: Tensor) -> Tensor:
    """Images without mean and contrast: (N, C, H, W) -> (N, C * H * W), float64 on the CPU.

    The mean of each channel is subtracted and the whole divided by its norm, so that the product of two of them is their
    correlation. An image that is flat or not finite becomes the zero vector.
    """
    pixels = images.detach().cpu().double().flatten(2)
    pixels = (pixels - pixels.mean(2, keepdim=True)).flatten(1)
    norm = pixels.norm(dim=1, keepdim=True)
    usable = norm.isfinite() & (norm > FLAT * math.sqrt(pixels.shape[1]))
    return torch.where(usable, pixels / norm, 0.0)


def correlation(guess: Tensor, truth: Tensor) -> Tensor:
    """Correlation of each image with its guess, mean and contrast removed (``without_contrast``): (B,), in [-1, 1].

    0 where one of the two is flat or not finite.
    """
    _same_shape(guess, truth)
    return (without_contrast(guess) * without_contrast(truth)).sum(1)


def ssim(guess: Tensor, truth: Tensor) -> Tensor:
    """Structural similarity of each image, averaged over pixels and channels: (B,), at most 1.

    With means mu, variances and covariance under a Gaussian window (11 x 11, sigma 1.5) that lies inside the image,

        SSIM = (2 mu_x mu_y + C1)(2 cov_xy + C2) / ((mu_x^2 + mu_y^2 + C1)(var_x + var_y + C2)),
        C1 = 0.01^2,  C2 = 0.03^2.

    Where an image is smaller than 11 pixels, the window shrinks to the largest odd size that fits each side, sigma stays 1.5 and
    the weights are normalised again (the paper and scikit-image leave this case undefined).

    Source: Wang, Bovik, Sheikh, Simoncelli, "Image quality assessment: from error visibility to structural similarity", 2004,
    Eq. 13; equal to ``skimage.metrics.structural_similarity(gaussian_weights=True, use_sample_covariance=False)``.
    """
    _same_shape(guess, truth)
    similarity, _ = _similarity(guess.double(), truth.double())
    return similarity.mean(1).to(guess.dtype)


def ms_ssim(guess: Tensor, truth: Tensor) -> Tensor:
    """Multi-scale structural similarity of each image, averaged over channels: (B,), in [0, 1].

    The product over scales j = 1 to M of the contrast-structure term (2 cov_xy + C2) / (var_x + var_y + C2) to the power w_j, with
    the whole SSIM in its place at the last scale; each scale halves the one before by means over 2 x 2 pixels. Terms below 0 count
    as 0.

    M is 5 from 176 pixels on, as published. Of smaller images only those scales are used at which the window of 11 pixels fits,
    one at least, with their weights divided by their sum: 3 at 56 pixels. Such numbers are not comparable with those of 5 scales.

    Source: Wang, Simoncelli, Bovik, "Multiscale structural similarity for image quality assessment", 2003, Eq. 7; the weights are
    those of its section 3.2.
    """
    _same_shape(guess, truth)
    x, y = guess.double(), truth.double()
    # As many scales as hold a whole window, at least 1.
    shorter, most = min(x.shape[-2:]), len(MS_SSIM_WEIGHTS)
    scales = next((count for count in range(most, 1, -1) if shorter >> (count - 1) >= SSIM_WINDOW), 1)
    weights = x.new_tensor(MS_SSIM_WEIGHTS[:scales])
    weights = weights / weights.sum()
    product = x.new_ones(x.shape[:2])
    for scale, weight in enumerate(weights, 1):
        whole, structure = _similarity(x, y)
        product = product * (whole if scale == len(weights) else structure).clamp_min(0) ** weight
        if scale < len(weights):
            x, y = F.avg_pool2d(x, 2), F.avg_pool2d(y, 2)
    return product.mean(1).to(guess.dtype)


def _similarity(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """SSIM, and its term of contrast and structure, means over the pixels of each channel: (B, C) each."""
    # Covariances are differences of nearly equal numbers, which single precision would lose on flat images.
    mean_x, mean_y = _window_mean(x), _window_mean(y)
    var_x = _window_mean(x * x) - mean_x.square()
    var_y = _window_mean(y * y) - mean_y.square()
    covariance = _window_mean(x * y) - mean_x * mean_y
    c1, c2 = 0.01**2, 0.03**2
    structure = (2 * covariance + c2) / (var_x + var_y + c2)
    luminance = (2 * mean_x * mean_y + c1) / (mean_x.square() + mean_y.square() + c1)
    return (luminance * structure).flatten(2).mean(2), structure.flatten(2).mean(2)


def total_variation(images: Tensor) -> Tensor:
    """Anisotropic total variation of each image: mean |x[h, w+1] - x[h, w]| + mean |x[h+1, w] - x[h, w]|, (B,).

    A side of one pixel has no neighbours and adds 0.
    """
    return _sum_of_neighbours(images, torch.abs)


def squared_total_variation(images: Tensor) -> Tensor:
    """Mean squared difference of neighbours down plus that across, of each image (B, C, H, W): (B,). A side of one pixel adds 0."""
    return _sum_of_neighbours(images, torch.square)


def _sum_of_neighbours(images: Tensor, size: TensorMap) -> Tensor:
    """Mean size of the differences of neighbours across, plus that of those down, of each image: (B,)."""
    across = size(images[..., :, 1:] - images[..., :, :-1]).flatten(1)
    down = size(images[..., 1:, :] - images[..., :-1, :]).flatten(1)
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
