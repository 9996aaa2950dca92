"""Fewer levels for every pixel."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

import torch

from defenses.base import Batch, InputDefense
from defenses.checks import Limit


@dataclass(frozen=True, repr=False)
class Posterise(InputDefense):
    """Keeps the ``bits`` highest bits of every pixel."""

    bits: Annotated[int, Limit(1, 8)] = 2

    source: ClassVar[str] = "folklore: posterisation, as in image editors"
    resamples: ClassVar[bool] = False  # deterministic: protecting once is enough

    def protect_batch(self, batch: Batch, generator: torch.Generator) -> Batch:
        """Rounds every pixel down to one of 2^bits levels, which span [0, 1]."""
        highest = 2**self.bits - 1
        levels = (batch.images * (highest + 1)).floor().clamp(max=highest)  # white would be a level of its own
        return replace(batch, images=levels / highest)
