"""Scores of guessed images and labels against a client's two references: original and transformed images."""

from dataclasses import dataclass

import torch
from torch import Tensor

from attacks.guesses import Labels, Reconstruction
from attacks.image_measures import ms_ssim, mse, psnr, ssim
from attacks.metrics.guesses import LABEL_ACCURACY
from attacks.metrics.images import MS_SSIM, MS_SSIM_SUCCESS, MSE_PAPER, PSNR_PAPER, REFERENCES, SSIM_PAPER
from attacks.metrics.names import ScoreName, Scores
from attacks.metrics.registry import metric_of
from attacks.normalisation import normalise
from attacks.scoring.metrics import label_hits, optimal_assignment, score, score_pairs
from clients.task.task import Task
from clients.task.truths import Probed
from defenses.base import Batch

Pairs = tuple[Tensor, Tensor]
"""Rows of the guessed, and of the true images."""
SUCCESS = 0.35
"""What a reconstruction must exceed to count as a success in the delta protection paper (ADP, section 5.5)."""


def score_both(guess: Reconstruction | Labels, truth: Probed, *, paired: bool = False) -> Scores:
    """Every metric of a guess, image metrics against both references.

    ``paired``: guess i is of image i, as in smashed data, where an image keeps its row: image i is scored against image i and label
    i against label i, one value each. Else images are paired by the optimal assignment and labels count as a multiset, one value
    for a batch. Attacks on smashed data guess no labels beside their images.
    """
    classes = truth.original.targets.argmax(1)
    if isinstance(guess, Labels):
        return {LABEL_ACCURACY.of(): label_hits(guess, classes) if paired else [_right(guess, classes)]}
    if paired:
        return both_references((guess, guess), truth, paired=True)
    return both_references((guess, guess), truth, paired=False) | score_both(Labels(guess.labels.sort().values), truth)


@dataclass(frozen=True)
class PaperScale:
    """The scale of images in which the shuffling paper's code computes MSE, PSNR and SSIM, each with a peak of 1; per channel."""

    mean: tuple[float, ...]
    std: tuple[float, ...]

    def __str__(self) -> str:
        if {*self.mean, *self.std} == {0.5}:
            return "images in [-1, 1], peak 1"
        mean, std = (", ".join(f"{value:.4f}" for value in values) for values in (self.mean, self.std))
        return f"z-scores (mean {mean}; std {std}), peak 1"


PAPER_STD = {"cifar10": (0.2023, 0.1994, 0.2010)}
"""Data set -> what the paper's code divides by where that is not the data set's own deviation."""


def paper_scale(task: Task) -> PaperScale:
    """Images on the scale that the paper's code compares: (x - mean) / std of the data set.

    That is [-1, 1] for the faces (CelebA, LFW: 0.5 and 0.5), and z-scores for CIFAR-10 and for what the paper does not have.
    """
    card = task.plan.data_card()
    return PaperScale(card.mean, PAPER_STD.get(task.plan.dataset.partition(":")[0], card.std))


def paper_scores(guess: Tensor, truth: Tensor, scale: PaperScale) -> Scores:
    """Scores in the convention of the shuffling paper (Yao et al., ICDM 2022, reference code), to compare with its tables only.

    With images in [-1, 1] ``MSE_PAPER`` is 4 times the usual MSE, and ``PSNR_PAPER`` lies 6.02 dB below the usual PSNR.
    ``SSIM_PAPER`` has a data range of 1 on images whose range is larger.
    """
    g, t = (normalise(images.cpu(), scale) for images in (guess, truth))
    measured = ((MSE_PAPER, mse), (PSNR_PAPER, psnr), (SSIM_PAPER, ssim))
    return {metric.of(): metric.cut(measure(g, t).tolist()) for metric, measure in measured}


def scores_at_many_scales(guess: Tensor, truth: Tensor) -> Scores:
    """``MS_SSIM`` of images (B, C, H, W) in [0, 1], and ``MS_SSIM_SUCCESS``, 1 above ``SUCCESS``, by row.

    The paper's images of 224 pixels have five scales; see ``ms_ssim`` for how many fewer a small image has.
    """
    ssims = ms_ssim(guess.cpu(), truth[: len(guess)].cpu().to(guess.dtype))
    return {
        MS_SSIM.of("original"): MS_SSIM.cut(ssims.tolist()),
        MS_SSIM_SUCCESS.of(): (ssims > SUCCESS).float().tolist(),
    }


def uniform_label_accuracy(batch: Batch, *, paired: bool = False) -> list[float]:
    """Expected accuracy of guessing all classes evenly, without an observation.

    As a multiset one value: round-robin, mean over all starting classes. Paired, one for each image: 1 / K.
    """
    count, num_classes = batch.targets.shape
    if paired:
        return [1 / num_classes] * count
    classes = batch.targets.argmax(1)
    hits = [_right(Labels((torch.arange(count) + at) % num_classes), classes) for at in range(num_classes)]
    return [float(sum(hits)) / num_classes]


def _right(guess: Labels, classes: Tensor) -> float:
    """The share of classes that are guessed, as a multiset."""
    return float(score(guess, classes)[LABEL_ACCURACY.name])


def recognition(guess: Reconstruction, recognised: Tensor, truth: Batch, *, paired: bool = False) -> list[float]:
    """1 for every guessed image in which the oracle sees the class of the true image that it is paired with, else 0."""
    rows, columns = pairs_of(guess.images, truth.images, paired=paired)
    return (recognised[rows] == truth.targets.argmax(1)[columns]).float().tolist()


def pairs_of(guess: Tensor, truth: Tensor, *, paired: bool) -> Pairs:
    """Rows of the guessed and the true images to compare: by place where ``paired``, else by the optimal assignment.

    Raises:
        ValueError: When there are more paired guesses than attacked images.
    """
    if not paired:
        return optimal_assignment(guess, truth)
    if len(guess) > len(truth):
        raise ValueError(f"{len(guess)} guessed images for {len(truth)} attacked ones")
    return torch.arange(len(guess)), torch.arange(len(guess))


def both_references(guesses: tuple[Reconstruction, Reconstruction], truth: Probed, *, paired: bool) -> Scores:
    """Scores of a guess of the original and of one of the transformed images."""
    scores: Scores = {}
    for guess, reference, batch in zip(guesses, REFERENCES, (truth.original, truth.seen), strict=True):
        scores |= image_scores(
            guess.images, batch.images, pairs_of(guess.images, batch.images, paired=paired), reference
        )
    return scores


def image_scores(guess: Tensor, truth: Tensor, pairs: Pairs, reference: str) -> Scores:
    """Every metric of given pairs of images that has a ``measure``, cut to ``Metric.range``."""
    scored = score_pairs(guess, truth, pairs)
    return {ScoreName(name, reference): metric_of(name).cut(values) for name, values in scored.items()}
