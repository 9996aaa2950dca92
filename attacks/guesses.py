"""Results of attacks before scoring: guesses of images, classes, rows of a table or attributes.

Each guess has ``diagnostics``, numbers about the attack's progress, and ``failure``, the reason of a failure or "". Of images an
attack may also find a part (``Reconstruction.found``).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from attacks.observations import AttackError
from defenses.tensors import Numbers, Shape


@dataclass(frozen=True)
class Reconstruction:
    """Guessed images.

    Attributes:
        images: (B, C, H, W) in [0, 1]; uniform grey where the attack failed.
        labels: (B,) int64, the classes that the attack used; -1 if the attack failed before it had any.
        found: Of a guess with a ``failure``, the number of first images that the attack found all the same; the others are grey.
            0 is the result of a search in vain, None that of an error.
    """

    images: Tensor
    labels: Tensor
    diagnostics: Numbers = field(default_factory=dict)
    failure: str = ""
    found: int | None = None

    @classmethod
    def unlabelled(cls, images: Tensor, diagnostics: Numbers) -> Reconstruction:
        """Make the guess of an attack that guesses no classes."""
        return cls(images, torch.full((len(images),), -1), diagnostics)

    @classmethod
    def grey(cls, count: int, shape: Shape, failure: str, diagnostics: Numbers | None = None) -> Reconstruction:
        """Make the failed guess of ``count`` images of ``shape`` (C, H, W)."""
        count = max(count, 0)
        return cls(torch.full((count, *shape), 0.5), torch.full((count,), -1), diagnostics or {}, failure)

    def failed(self, error: AttackError | str) -> Reconstruction:
        """A grey copy of the guess, for a refinement that failed."""
        return replace(self, images=torch.full_like(self.images, 0.5), failure=str(error), found=None)

    def but_missing(self, count: int, reason: str) -> Reconstruction:
        """The guess with grey images behind its own, ``count`` in all, which the attack did not find; itself without a reason."""
        if not reason:
            return self
        guessed, shape = len(self.images), (self.images.shape[1], self.images.shape[2], self.images.shape[3])
        grey = Reconstruction.grey(count - guessed, shape, reason)
        images = torch.cat([self.images, grey.images.to(self.images)])
        return Reconstruction(images, torch.cat([self.labels, grey.labels]), self.diagnostics, reason, guessed)

    def part(self) -> Reconstruction:
        """The images that the attack found, as a guess without a failure."""
        if not self.failure:
            return self
        return replace(self, images=self.images[: self.found or 0], labels=self.labels[: self.found or 0], failure="")


def found_nothing(guess: Any) -> bool:
    """Whether a guess failed as a whole."""
    return bool(guess.failure) and not getattr(guess, "found", 0)


@dataclass(frozen=True)
class Labels:
    """Guessed classes of a batch: (B,) int64; -1 where the attack failed.

    For an update, the classes are a sorted multiset, because an update has no order of examples. For smashed data, class i belongs
    to image i, because each image keeps its row.
    """

    classes: Tensor
    diagnostics: Numbers = field(default_factory=dict)
    failure: str = ""


@dataclass(frozen=True)
class Cells:
    """Guessed rows of a table; row i belongs to example i, because each example of smashed data keeps its row in the batch.

    Attributes:
        categories: (B, F) int64, the number of the category in every column; -1 where the attack failed.
        embeddings: (B, F, D), the client half's embeddings of these categories; zeros where the attack failed.
    """

    categories: Tensor
    embeddings: Tensor
    diagnostics: Numbers = field(default_factory=dict)
    failure: str = ""


@dataclass(frozen=True)
class Attributes:
    """Guessed values of a sensitive attribute; row i is of image i.

    Attributes:
        logits: (B, K), the largest for the most probable of K values; NaN where the attack failed.
    """

    logits: Tensor
    diagnostics: Numbers = field(default_factory=dict)
    failure: str = ""

    @property
    def values(self) -> Tensor:
        """The most probable value of each image: (B,) int64; -1 where a logit is NaN."""
        return self.logits.argmax(1).masked_fill(self.logits.isnan().any(1), -1)


@dataclass(frozen=True)
class Representatives:
    """Typical images of one client's classes, drawn by a generator; they are no guesses of single examples.

    Attributes:
        images: (N, C, H, W) in [0, 1]; uniform grey where the attack failed.
        classes: (N,) int64, the class of each image.
    """

    images: Tensor
    classes: Tensor
    diagnostics: Numbers = field(default_factory=dict)
    failure: str = ""
