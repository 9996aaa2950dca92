"""Counts the pictures that an attack recovered from their copies, by the report's rule, with a folder's pictures as candidates."""

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
