"""InstaHide: mixing of several images and random sign flips."""

import itertools
from typing import Annotated

import torch
from torch import Tensor

from defenses.base import Batch, InputDefense
from defenses.checks import Limit, algorithm, require
from defenses.functional import random_signs

MOST_MIXED = 32
"""Images in a mixture, five times the paper's 4 and 6: all of them are in memory at once, and weights under the tightest bound that
is redrawn are found in about a hundred draws (with 256 images, in 10^16)."""
PATIENCE = 16
"""Redraws of single points, which are enough for few images, before several are drawn at once."""
MOST_DRAWN = 2**16
"""Points that are drawn at once."""


def bounded_convex_weights(count: int, num_mixed: int, max_weight: float, generator: torch.Generator) -> Tensor:
    """Rows uniform on {w : w_i >= 0, sum_i w_i = 1, w_i <= max_weight}, as (count, num_mixed) float64.

    Uniform points of a simplex that contains the set are redrawn until they lie in it. When the bound is tight the
    reflected simplex, max_weight - w, is the smaller of the two, so that redrawing ends for every bound.
    """
    excess = max(num_mixed * max_weight - 1, 0)  # the sum of all max_weight - w_i
    reflected = excess < 1
    weights = torch.full((count, num_mixed), -1.0, dtype=torch.float64)
    for attempt in itertools.count():
        todo = _outside(weights, max_weight).nonzero().flatten()
        if not len(todo):
            break
        # With many images and an excess near 1 few points lie in the set: many are drawn at once then.
        repeats = min(2 ** max(attempt - PATIENCE, 0), max(1, MOST_DRAWN // len(todo)))
        # Exponential variables over their sum are uniform on the simplex.
        draws = torch.empty(repeats, len(todo), num_mixed, dtype=torch.float64).exponential_(generator=generator)
        points = draws / draws.sum(-1, keepdim=True)
        drawn = max_weight - excess * points if reflected else points
        first = (~_outside(drawn, max_weight)).byte().argmax(0)
        weights[todo] = drawn[first, torch.arange(len(todo))]
    return weights


def _outside(weights: Tensor, max_weight: float) -> Tensor:
    return ((weights < 0) | (weights > max_weight)).any(-1)


@algorithm
class InstaHide(InputDefense):
    """Mix each image with others of its batch under random weights, then flip the signs of random pixel values.

        x~_i = s_i * sum_j w_ij x_{p_j(i)},   y~_i = sum_j w_ij y_{p_j(i)},   s_i in {-1, 1}^(C, H, W)

    with p_1 the identity and p_2 .. p_k random permutations of the batch. Fresh weights, partners and signs every time.
    Broken by Carlini et al. (IEEE S&P 2021), who recover the images from their encryptions; kept as a baseline.

    Differences from the authors: images are mixed within a batch, which bounds what can be mixed; they are centred at 1/2
    and not at the data set's mean, since normalisation comes later here; and the weights are uniform on the allowed set, where
    their code normalises half-normal draws.
    This is the "inside-dataset" variant. Test images stay plain, as in the authors' code: a mixture has no class of
    its own.

    Args:
        num_mixed: Images per mixture, the paper's k; the batch should be larger, or an image meets itself again.
        max_weight: Largest weight of one image, the paper's c_1.
    """

    num_mixed: Annotated[int, Limit(1, MOST_MIXED)] = 4
    max_weight: float = 0.65

    always_shown = ("num_mixed",)
    source = "Huang et al., InstaHide, ICML 2020, arXiv 2010.02772, Alg. 1 and 2"
    mixes_examples = True
    adaptive_attacks = ("LearnedRestorer", "JointEncodingInversion")
    caveat = (
        "known to be broken by who joins many encodings (Carlini et al., IEEE S&P 2021): JointEncodingInversion does where clients "
        "upload several encodings of an image (upload-passes); scores of other attacks are of one encoding at a time"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        allowed = 1 / self.num_mixed <= self.max_weight <= 1
        require(allowed, self, "max_weight", f"a number from 1/num_mixed = {1 / self.num_mixed:.4g} to 1")

    def protect_batch(self, batch: Batch, generator: torch.Generator) -> Batch:
        """Mixes images and targets, then flips signs."""
        count = len(batch)
        weights = bounded_convex_weights(count, self.num_mixed, self.max_weight, generator)
        others = [torch.randperm(count, generator=generator) for _ in range(self.num_mixed - 1)]
        partners = torch.stack([torch.arange(count), *others], dim=1).to(batch.images.device)
        images = torch.einsum("bk,bkchw->bchw", weights.to(batch.images), batch.images[partners])
        targets = torch.einsum("bk,bkc->bc", weights.to(batch.targets), batch.targets[partners])
        signs = random_signs(images.shape, generator).to(images)
        # Signs are flipped in [-1, 1], where 0 is the middle of the range.
        return Batch((((2 * images - 1) * signs + 1) / 2).clamp(0, 1), targets)
