"""Comparison of guesses and copies with the pictures: images that an attack recovered, and copies identified without one."""

from __future__ import annotations

import torch
from torch import Tensor

from attacks.image_measures import psnr
from attacks.scoring.metrics import null_baselines, retrieved
from simulations.report.studies.recovery import LEAST_GAIN, is_recovered

MOST_CANDIDATES = 100
RULE = (
    f"A copy counts as recovered when the guess identifies its picture among at most {MOST_CANDIDATES} pictures of the folder and "
    f"its PSNR lies at least {LEAST_GAIN:g} dB above the best null baseline (a grey image, or the mean of the others)."
)
"""As the page states it."""
VIEWS = 8
"""Turned and mirrored views of each original that are candidates: they have its colours, and not its layout."""


def count_recovered(guess: Tensor, truth: Tensor, others: Tensor) -> int:
    """How many pictures are recovered.

    Args:
        guess: (N, C, H, W) in [0, 1], in the order of the pictures.
        truth: (N, C, H, W) in [0, 1], the pictures.
        others: (K, C, H, W) in [0, 1], other pictures of the folder, of which K may be 0.
    """
    candidates = torch.cat([truth, others])[: max(MOST_CANDIDATES, len(truth))]
    mean = others.mean(0) if len(others) else torch.full_like(truth[0], 0.5)
    nulls = torch.stack([psnr(one.images, truth) for one in null_baselines(truth, mean).values()]).amax(0).tolist()
    identified = retrieved(guess, candidates, torch.arange(len(truth)))
    return sum(map(is_recovered, psnr(guess, truth).tolist(), nulls, identified))


def identified(copies: Tensor, originals: Tensor, own: Tensor | None = None) -> list[bool]:
    """Whether each reduced copy is closest to its own original, of all originals in all their views.

    A shuffle keeps the mean colour of a picture, which alone separates a few pictures. The views of the own original have
    the same colours, so that a copy that shows nothing but colours is identified in at most 1 of ``VIEWS`` cases.

    Args:
        copies: (M, 3, S, S) in [0, 1].
        originals: (K, 3, S, S) in [0, 1].
        own: (M,) int64, the place of each copy's original; by default the copies are in the order of the originals.
    """
    views = [torch.rot90(one, turns, (2, 3)) for one in (originals, originals.flip(3)) for turns in range(4)]
    return [hit == 1 for hit in retrieved(copies, torch.cat(views), torch.arange(len(copies)) if own is None else own)]
