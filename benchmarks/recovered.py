"""Guesses and copies compared with their pictures: recovered by the report's rule, or identified. Prints nothing by itself."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import adaptive_avg_pool2d

from attacks.image_measures import psnr
from attacks.scoring.metrics import null_baselines, retrieved
from simulations.report.studies.recovery import is_recovered

MOST_CANDIDATES = 100
GRID = 32
"""Cells along each side of the reduced pictures. A cell is the mean of its pixels, as an eye sees them from a distance."""


def count_recovered(guess: Tensor, truth: Tensor, others: Tensor) -> int:
    """How many pictures a guess recovers: (N, C, H, W) each in [0, 1], and ``others`` (K, C, H, W), of which K may be 0."""
    candidates = torch.cat([truth, others])[: max(MOST_CANDIDATES, len(truth))]
    mean = others.mean(0) if len(others) else torch.full_like(truth[0], 0.5)
    nulls = torch.stack([psnr(one.images, truth) for one in null_baselines(truth, mean).values()]).amax(0).tolist()
    picked = retrieved(guess, candidates, torch.arange(len(truth)))
    return sum(map(is_recovered, psnr(guess, truth).tolist(), nulls, picked))


def count_identified(copies: Tensor, originals: Tensor) -> int:
    """How many copies are closest to their own original, all downsampled: (N, C, H, W) each in [0, 1].

    Candidates are all originals in 8 views, turned and mirrored. A shuffle keeps the mean colour of a picture, and the views have
    the same colours, so that colours alone identify at most 1 copy in 8.
    """
    small, whole = (adaptive_avg_pool2d(one, GRID).expand(-1, 3, -1, -1) for one in (copies, originals))
    views = [torch.rot90(one, turns, (2, 3)) for one in (whole, whole.flip(3)) for turns in range(4)]
    return sum(hit == 1 for hit in retrieved(small, torch.cat(views), torch.arange(len(small))))
