"""What an attack returns: guesses of images, classes, rows of a table or attributes, none of them scored yet.

Each has ``diagnostics``, numbers that say how the attack went, and ``failure``: why it failed, or "".
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from attacks.observations import AttackError


@dataclass(frozen=True)
class Reconstruction:
    """Guessed images.

    Attributes:
        images: (B, C, H, W) in [0, 1]; uniform grey where the attack failed.
        labels: (B,) int64, the classes that the attack worked with; -1 where it failed before it had any.
    """

    images: Tensor
    labels: Tensor
    diagnostics: dict[str, float] = field(default_factory=dict)
    failure: str = ""

    @classmethod
    def grey(
        cls, count: int, shape: tuple[int, ...], failure: str, diagnostics: dict[str, float] | None = None
    ) -> Reconstruction:
        """The failed guess of ``count`` images (C, H, W) = ``shape``."""
        count = max(count, 0)
        return cls(torch.full((count, *shape), 0.5), torch.full((count,), -1), diagnostics or {}, failure)

    def failed(self, error: AttackError) -> Reconstruction:
        """The same guess, grey: what was to be made of it could not be made."""
        return replace(self, images=torch.full_like(self.images, 0.5), failure=str(error))


@dataclass(frozen=True)
class Labels:
    """Guessed classes of a batch: (B,) int64; -1 where the attack failed.

    Of an update they are a multiset, sorted: nothing says which example has which. Of smashed data, where an image keeps its row,
    class i is that of image i.
    """

    classes: Tensor
    diagnostics: dict[str, float] = field(default_factory=dict)
    failure: str = ""


@dataclass(frozen=True)
class Cells:
    """Guessed rows of a table; row i is that of example i, as smashed data keep an example's row in the batch.

    Attributes:
        categories: (B, F) int64, the number of the category in every column; -1 where the attack failed.
        embeddings: (B, F, D), what the client half would make of them; zeros where the attack failed.
    """

    categories: Tensor
    embeddings: Tensor
    diagnostics: dict[str, float] = field(default_factory=dict)
    failure: str = ""


@dataclass(frozen=True)
class Attributes:
    """Guessed values of a sensitive attribute; row i is of image i.

    Attributes:
        logits: (B, K), the largest for the most probable of K values; NaN where the attack failed.
    """

    logits: Tensor
    diagnostics: dict[str, float] = field(default_factory=dict)
    failure: str = ""

    @property
    def values(self) -> Tensor:
        """The most probable value of each image: (B,) int64; -1 where a logit is NaN."""
        return self.logits.argmax(1).masked_fill(self.logits.isnan().any(1), -1)


@dataclass(frozen=True)
class Representatives:
    """Pictures of what the classes of one client look like, as a generator drew them; none of them is a guess of one example.

    Attributes:
        images: (N, C, H, W) in [0, 1]; uniform grey where the attack failed.
        classes: (N,) int64, the class that each was drawn for.
    """

    images: Tensor
    classes: Tensor
    diagnostics: dict[str, float] = field(default_factory=dict)
    failure: str = ""
