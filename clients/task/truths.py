"""Truths that score guesses: a client's original images, and those images as they entered the model."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from clients.task.batches import join
from defenses.base import Batch


@dataclass(frozen=True)
class Probed:
    """The images of one probe: the originals, and as they entered the model.

    Attributes:
        original: Before the defences, cropped and mirrored where training does so.
        seen: As they entered the model.
        positions: (B,) int64, which of the client's own images they are: as ``LocalData.own_images`` counts.
    """

    original: Batch
    seen: Batch
    positions: Tensor


@dataclass(frozen=True)
class Truths:
    """A client's own copy of the server's observations of one kind in a round.

    Attributes:
        views: One entry for each observation.
        paired: Messages keep the rows of images, so that guess i is compared with image i.
        whole_round: Each observation covers all training examples, so that a guess may be of any of many images.
        in_paper_scale: Guesses are also scored in the convention of the shuffling paper
            (``clients.scoring.image_scores.paper_scores``).
        embed: Of rows of a table: rows (n, 1, F, 1) -> embeddings (n, F, D) as the client half makes them; None where it changes.
        at_many_scales: Images are also scored by MS-SSIM (``clients.scoring.image_scores.scores_at_many_scales``).
        pooled: Each observation is of other clients' images as well: of the guesses of all images, each of this client's gets the
            one that the assignment gives it, and classes, whose clients are unknown, get no score.
    """

    views: list[Probed]
    paired: bool = False
    whole_round: bool = False
    in_paper_scale: bool = False
    embed: Callable[[Tensor], Tensor] | None = None
    at_many_scales: bool = False
    pooled: bool = False


def rows(view: Probed, chosen: Tensor | slice) -> Probed:
    """Select the truths of some images."""
    original, seen = (batch.rows(chosen) for batch in (view.original, view.seen))
    return Probed(original, seen, view.positions[chosen])


def joined(views: Sequence[Probed]) -> Probed:
    """One view of the images of several, in order."""
    batches = (join([view.original for view in views]), join([view.seen for view in views]))
    return Probed(*batches, torch.cat([view.positions for view in views]))
