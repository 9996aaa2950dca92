"""How close a guess comes to the truth: pixel scores, one optimal assignment per batch, retrieval, null baselines.

Images are (B, C, H, W) floating point; ``data_range`` is the distance between the smallest and largest possible value (1 for
images in [0, 1]). Scores are per image, so that a report can show the worst one; averaging is left to the reader of the list.
"""

import math
from collections import Counter
from functools import singledispatch
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from attacks.guesses import Attributes, Labels, Reconstruction, Representatives
from attacks.image_measures import gaussian, psnr, smoothed, ssim, without_contrast
from attacks.metrics.guesses import ATTRIBUTE_ACCURACY, CLASS_MEAN_PSNR, CLASS_MEAN_SSIM, LABEL_ACCURACY
from attacks.metrics.images import RECOGNITION
from attacks.metrics.registry import MEASURED


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
    count = min(len(guess), len(truth))
    if len(guess) > 1 and (guess == guess[:1]).all():
        # Every assignment of equal guesses costs the same once its true images are chosen: those nearest to the one guess.
        nearest = squared_errors(guess[:1], truth)[0].argsort(stable=True)[:count]
        return torch.arange(count), nearest.sort().values
    cost = squared_errors(guess, truth) / math.prod(guess.shape[1:])
    rows, columns = linear_sum_assignment(cost.nan_to_num(nan=1e12, posinf=1e12).numpy())
    return torch.from_numpy(rows).long(), torch.from_numpy(columns).long()


def squared_errors(guess: Tensor, truth: Tensor) -> Tensor:
    """Sums of squared differences of every guess (M, C, H, W) and every true image (N, C, H, W): (M, N) float64 on the CPU.

    Computed by a matrix product, so that a value is exact to about 1e-15 of the images' own squared sums. For images in [0, 1] that
    is a mean squared error of 1e-15, where 1e-10 is the best that scores distinguish (``MAX_PSNR``). NaN where an image has one.
    """
    g, t = guess.detach().flatten(1).double().cpu(), truth.detach().flatten(1).double().cpu()
    return torch.addmm(g.square().sum(1, keepdim=True) + t.square().sum(1), g, t.T, alpha=-2).clamp_(min=0)


@singledispatch
def score(guess: Any, truth: Tensor) -> dict[str, Any]:
    """Scores a guess against the truth, by the type of the guess.

    A ``Reconstruction`` against images (N, C, H, W) in [0, 1] gives per-image lists ``mse``, ``psnr``, ``ssim``: all three of the
    same pairs, those of ``optimal_assignment``, in the order of the guesses. ``Labels`` against classes (N,) give
    ``label-accuracy``: the size of the multiset intersection, divided by N (where guesses are paired, see ``label_hits``).
    ``Attributes`` against values (N,) give the list ``attribute-accuracy`` (``attribute_hits``).

    Raises:
        TypeError: For any other guess.
    """
    raise TypeError(f"no score is defined for {type(guess).__name__} against {type(truth).__name__}")


@score.register
def _(guess: Reconstruction, truth: Tensor) -> dict[str, Any]:
    return score_pairs(guess.images, truth, optimal_assignment(guess.images, truth))


def score_pairs(guess: Tensor, truth: Tensor, pairs: tuple[Tensor, Tensor]) -> dict[str, list[float]]:
    """Per-image lists of every metric with a ``measure`` (``mse``, ``psnr``, ``ssim``), of given pairs.

    Images are (M, C, H, W) and (N, C, H, W) in [0, 1]; ``pairs`` are as ``optimal_assignment`` returns them.
    """
    images, truth = guess.detach().cpu(), truth.detach().cpu().to(guess.dtype)
    pair = images[pairs[0]], truth[pairs[1]]
    return {metric.name: metric.measure(*pair).tolist() for metric in MEASURED if metric.measure}


@score.register
def _(guess: Labels, truth: Tensor) -> dict[str, Any]:
    return {LABEL_ACCURACY.name: (Counter(guess.classes.tolist()) & Counter(truth.tolist())).total() / len(truth)}


TIE = 1e-12
"""Difference of two correlations up to which they count as equal, as rounding makes it."""
AT_ONCE = 128
"""Candidates whose correlations are computed at once."""


def correlations(guess: Tensor, candidates: Tensor) -> Tensor:
    """Correlations of guesses (M, C, H, W) and candidates (K, C, H, W): (M, K) float64 on the CPU, 0 for flat images."""
    own = without_contrast(guess)
    return torch.cat([own @ without_contrast(some).T for some in torch.split(candidates, AT_ONCE)], 1)


def retrieved(guess: Tensor, candidates: Tensor, own: Tensor, compared: Tensor | None = None) -> list[float]:
    """Top-1 retrieval: 1 for every guess that correlates more with its own image than with any other candidate, else 0.

    Mean and contrast are removed first (``without_contrast``): a colour identifies nothing. A tie is no retrieval, nor is a guess
    that is flat or not finite: a guess made without looking at the truth hits one in as many as there are candidates.

    Args:
        guess: (M, C, H, W).
        candidates: (K, C, H, W), the own images of all guesses among them, each once.
        own: (M,) int64, the place of the image behind each guess among the candidates.
        compared: (M, K) bool, with which others each guess is compared; by default with all.

    Source: "image identifiability precision" of Yin et al., "See through Gradients: Image Batch Recovery via GradInversion",
    CVPR 2021, with pixels in place of deep features, and other images of the data set as candidates.
    """
    likeness, at = correlations(guess, candidates), torch.arange(len(guess))
    mine = likeness[at, own].clone()
    likeness[at, own] = 0.0
    if compared is not None:
        likeness = likeness.where(compared, 0.0)
    return (mine > likeness.amax(1).clamp(min=0.0) + TIE).float().tolist()


def label_hits(guess: Labels, truth: Tensor) -> list[float]:
    """1 for every guess i that is the class of example i, else 0, where guesses are paired with examples: N of each."""
    if guess.classes.shape != truth.shape:
        raise ValueError(f"{len(guess.classes)} guessed classes for {len(truth)} examples")
    return (guess.classes.cpu() == truth.cpu()).float().tolist()


@score.register
def _(guess: Attributes, truth: Tensor) -> dict[str, Any]:
    return {ATTRIBUTE_ACCURACY.name: attribute_hits(guess, truth)}


def attribute_hits(guess: Attributes, truth: Tensor) -> list[float]:
    """1 for every image whose attribute was guessed, else 0, as where the attack failed; ``truth`` (N,) holds the values."""
    if guess.values.shape != truth.shape:
        raise ValueError(f"{len(guess.values)} guessed attributes of {len(truth)} images")
    return (guess.values.cpu() == truth.cpu()).float().tolist()


def null_baselines(truth: Tensor, mean_image: Tensor) -> dict[str, Reconstruction]:
    """What anyone could answer without attacking; an attack that scores no better has failed.

    They are ``grey`` (0.5 everywhere) and ``mean``, the mean image (C, H, W) of images of the same kind; of ``truth`` (B, C, H, W)
    only the shape matters.
    """
    images = {"grey": torch.full_like(truth, 0.5), "mean": mean_image.to(truth).expand_as(truth).clone()}
    nothing = torch.full((len(truth),), -1)
    return {name: Reconstruction(picture, nothing) for name, picture in images.items()}


def blurred(images: Tensor, std: float = 2.0) -> Tensor:
    """Images (B, C, H, W) under a Gaussian blur of ``std`` pixels, borders replicated.

    A blurred copy of the truth is a scale to read a PSNR by. It is no baseline: it is made from the truth, and of smooth images it
    is closer to the truth than most readable reconstructions.
    """
    radius = math.ceil(3 * std)
    padded = F.pad(images, (radius,) * 4, mode="replicate")
    return smoothed(padded, gaussian(2 * radius + 1, std, images), gaussian(2 * radius + 1, std, images))


def score_representatives(
    guess: Representatives, truth_images: Tensor, truth_classes: Tensor, recognised: Tensor
) -> dict[str, list[float]]:
    """Scores generated images, one number each, in their order.

    Args:
        guess: N generated images with the class that each was drawn for.
        truth_images: (M, C, H, W) in [0, 1], the client's examples.
        truth_classes: (M,) int64, their classes.
        recognised: (N,) int64, the class that the oracle saw in each generated image.

    Returns:
        ``recognition``: 1 where the oracle saw the intended class, else 0; chance is one over the number of classes.
        ``class-mean-psnr`` (dB) and ``class-mean-ssim``: against the mean image of the client's examples of the intended class;
        only for images whose class the client has, so these lists may be shorter. The mean of the *auxiliary* images of a class is
        the baseline to beat.
    """
    if recognised.shape != guess.classes.shape or len(guess.images) != len(guess.classes):
        raise ValueError(
            f"{len(guess.images)} images, {len(guess.classes)} classes, {len(recognised)} answers of the oracle"
        )
    if truth_classes.shape != truth_images.shape[:1]:
        raise ValueError(f"{len(truth_images)} true images, but classes of shape {tuple(truth_classes.shape)}")
    images, classes = guess.images.detach().cpu(), guess.classes.cpu()
    scores = {
        RECOGNITION.name: (recognised.cpu() == classes).float().tolist(),
        CLASS_MEAN_PSNR.name: [],
        CLASS_MEAN_SSIM.name: [],
    }
    truth, labels = truth_images.detach().cpu().to(images.dtype), truth_classes.cpu()
    held = torch.isin(classes, labels)
    if held.any():
        means = torch.stack([truth[labels == int(label)].mean(0) for label in classes[held]])
        scores[CLASS_MEAN_PSNR.name] = CLASS_MEAN_PSNR.cut(psnr(images[held], means).tolist())
        scores[CLASS_MEAN_SSIM.name] = CLASS_MEAN_SSIM.cut(ssim(images[held], means).tolist())
    return scores
