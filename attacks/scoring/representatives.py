"""Scores of class representatives: recognised by an oracle, close to the class mean; never compared with single examples."""

from __future__ import annotations

import torch
from torch import Tensor

from attacks.guesses import Representatives
from attacks.image_measures import psnr, ssim
from attacks.metrics.guesses import CLASS_MEAN_PSNR, CLASS_MEAN_SSIM
from attacks.metrics.images import RECOGNITION


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

    Raises:
        ValueError: When lengths or shapes do not fit.
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
        scores[CLASS_MEAN_PSNR.name] = psnr(images[held], means).tolist()
        scores[CLASS_MEAN_SSIM.name] = ssim(images[held], means).tolist()
    return scores
