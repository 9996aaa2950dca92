"""How close a guess comes to the truth: pixel scores, one optimal assignment per batch, retrieval, null baselines.

Images are (B, C, H, W) floating point; ``data_range`` is the distance between the smallest and largest possible value (1 for
images in [0, 1]). Scores are per image, so that a report can show the worst one; averaging is left to the reader of the list.
"""

from __future__ import annotations

import math
from collections import Counter
from functools import singledispatch
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from attacks.base import Labels, Reconstruction

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


def optimal_assignment(guess: Tensor, truth: Tensor) -> tuple[Tensor, Tensor]:
    """Pairs guesses with true images so that the sum of their squared errors is smallest; nothing is used twice.

    Args:
        guess: (M, C, H, W).
        truth: (N, C, H, W). The larger of the two batches keeps |M - N| images without a partner.

    Returns:
        Indices into ``guess`` (ascending) and into ``truth``, each (min(M, N),) int64 on the CPU.
    """
    from scipy.optimize import linear_sum_assignment

    if guess.shape[1:] != truth.shape[1:]:
        raise ValueError(f"guessed images have shape {tuple(guess.shape[1:])}, true images {tuple(truth.shape[1:])}")
    g, t = guess.flatten(1).double().cpu(), truth.flatten(1).double().cpu()
    # Without the matrix-product shortcut: it loses the digits that tell two good matches apart.
    cost = torch.cdist(g, t, compute_mode="donot_use_mm_for_euclid_dist").square() / g.shape[1]
    rows, columns = linear_sum_assignment(cost.nan_to_num(nan=1e12, posinf=1e12).numpy())
    return torch.from_numpy(rows).long(), torch.from_numpy(columns).long()


@singledispatch
def score(guess: Any, truth: Tensor) -> dict[str, Any]:
    """Scores a guess against the truth, by the type of the guess.

    A ``Reconstruction`` against images (N, C, H, W) in [0, 1] gives per-image lists ``mse``, ``psnr``, ``ssim``: all three of the
    same pairs, those of ``optimal_assignment``, in the order of the guesses. ``Labels`` against classes (N,) give
    ``label-accuracy``: the size of the multiset intersection, divided by N (where guesses are paired, see ``label_hits``).

    Raises:
        TypeError: For any other guess.
    """
    raise TypeError(f"no score is defined for {type(guess).__name__} against {type(truth).__name__}")


@score.register
def _(guess: Reconstruction, truth: Tensor) -> dict[str, Any]:
    return score_pairs(guess.images, truth, optimal_assignment(guess.images, truth))


def score_pairs(guess: Tensor, truth: Tensor, pairs: tuple[Tensor, Tensor]) -> dict[str, list[float]]:
    """Per-image lists ``mse``, ``psnr`` and ``ssim`` of given pairs.

    Args:
        guess: (M, C, H, W) in [0, 1].
        truth: (N, C, H, W) in [0, 1].
        pairs: Indices into ``guess`` and into ``truth``, as ``optimal_assignment`` returns them.
    """
    images, truth = guess.detach().cpu(), truth.detach().cpu().to(guess.dtype)
    pair = images[pairs[0]], truth[pairs[1]]
    return {metric.__name__: metric(*pair).tolist() for metric in (mse, psnr, ssim)}


@score.register
def _(guess: Labels, truth: Tensor) -> dict[str, Any]:
    common = Counter(guess.classes.tolist()) & Counter(truth.tolist())
    return {"label-accuracy": common.total() / len(truth)}


def retrieved(guess: Tensor, line_up: Tensor, own: Tensor) -> list[float]:
    """Top-1 retrieval: 1 for every guess whose own image is nearest to it of all images of a line-up, else 0.

    Nearest is the smallest mean squared error (the highest PSNR). A tie is no retrieval, nor is a guess that is not finite: a
    guess made without looking at the truth hits one in as many as are lined up.

    Args:
        guess: (M, C, H, W).
        line_up: (K, C, H, W), the own images of all guesses among them, each once.
        own: (M,) int64, where in the line-up the image behind each guess is.

    Source: "image identifiability precision" of Yin et al., "See through Gradients: Image Batch Recovery via GradInversion",
    CVPR 2021, with pixels in place of deep features, and other images of the data set as candidates.
    """
    g, known = guess.detach().flatten(1).float().cpu(), line_up.detach().flatten(1).float().cpu()
    # Without the matrix-product shortcut, as in ``optimal_assignment``.
    distances = torch.cdist(g, known, compute_mode="donot_use_mm_for_euclid_dist").nan_to_num(nan=math.inf)
    at = torch.arange(len(g))
    mine = distances[at, own].clone()
    distances[at, own] = math.inf
    found: list[float] = ((mine < distances.amin(1)) if len(known) > 1 else mine < math.inf).float().tolist()
    return found


def label_hits(guess: Labels, truth: Tensor) -> list[float]:
    """1 for every guess i that is the class of example i, else 0, where guesses are paired with examples: N of each.

    Raises:
        ValueError: When there are not as many guesses as examples.
    """
    if guess.classes.shape != truth.shape:
        raise ValueError(f"{len(guess.classes)} guessed classes for {len(truth)} examples")
    return (guess.classes.cpu() == truth.cpu()).float().tolist()


def null_baselines(truth: Tensor, mean_image: Tensor) -> dict[str, Reconstruction]:
    """What anyone could answer without attacking; an attack that scores no better has failed.

    Args:
        truth: (B, C, H, W) in [0, 1]; only its shape matters.
        mean_image: (C, H, W), the mean of images of the same kind.

    Returns:
        ``grey`` (0.5 everywhere) and ``mean``.
    """
    images = {"grey": torch.full_like(truth, 0.5), "mean": mean_image.to(truth).expand_as(truth).clone()}
    nothing = torch.full((len(truth),), -1)
    return {name: Reconstruction(picture, nothing) for name, picture in images.items()}


def blurred(images: Tensor, std: float = 2.0) -> Tensor:
    """Images (B, C, H, W) under a Gaussian blur of ``std`` pixels, borders replicated.

    A blurred copy of the truth is a scale to read a PSNR by. It is no bar: who has it has the truth, and of smooth images it is
    closer to the truth than most readable reconstructions.
    """
    radius = math.ceil(3 * std)
    padded = F.pad(images, (radius,) * 4, mode="replicate")
    return _filter(padded, _gaussian(2 * radius + 1, std, images), _gaussian(2 * radius + 1, std, images))


def _window_mean(images: Tensor) -> Tensor:
    sizes = [min(SSIM_WINDOW, side - 1 + side % 2) for side in images.shape[-2:]]
    return _filter(images, *(_gaussian(size, SSIM_SIGMA, images) for size in sizes))


def _gaussian(size: int, std: float, like: Tensor) -> Tensor:
    at = torch.arange(size, dtype=like.dtype, device=like.device) - (size - 1) / 2
    weights = torch.exp(-0.5 * (at / std).square())
    return weights / weights.sum()


def _filter(images: Tensor, down: Tensor, across: Tensor) -> Tensor:
    """Separable correlation of every channel, without padding."""
    flat = images.flatten(0, 1)[:, None]
    filtered = F.conv2d(F.conv2d(flat, down[None, None, :, None]), across[None, None, None, :])
    return filtered.view(*images.shape[:2], *filtered.shape[-2:])


def _same_shape(guess: Tensor, truth: Tensor) -> None:
    if guess.shape != truth.shape:
        raise ValueError(f"guess has shape {tuple(guess.shape)}, truth {tuple(truth.shape)}")
