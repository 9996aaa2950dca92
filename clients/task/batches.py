"""Batches of examples: read, cut into pieces, joined."""

import itertools
from collections.abc import Sequence

import torch
from torch import Tensor

from attacks.scoring.objective import objective_of
from clients.data.images import ImageData, to_float
from defenses.base import Batch

CHUNK = 256
"""Examples that are read and judged at once."""


def local_batch(part: ImageData, indices: Tensor, num_classes: int) -> Batch:
    """The examples at ``indices`` as floats in [0, 1] with their targets (one-hot, or label vectors)."""
    targets = objective_of(part.vectors is not None).targets(part.truth(indices), num_classes)
    return Batch(to_float(part.images[indices]), targets)


def chunks(count: int, size: int, first: int = 0) -> list[Tensor]:
    """Positions ``first`` to ``first + count`` in pieces of ``size``; a last single one joins the piece before (mixing needs 2)."""
    cuts = [*range(first, max(first + count - 1, first + 1), size), first + count]
    return [torch.arange(start, end) for start, end in itertools.pairwise(cuts)]


def join(batches: Sequence[Batch]) -> Batch:
    """One batch of several, in order."""
    return Batch(torch.cat([batch.images for batch in batches]), torch.cat([batch.targets for batch in batches]))
