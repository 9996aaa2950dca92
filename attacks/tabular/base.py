"""What attacks on smashed tables share: auxiliary rows, what the client half makes of every category, and the failed guess."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from attacks.base import AttackError, Cells, Knowledge
from attacks.normalisation import normalise
from attacks.sender import Sender
from attacks.smashed.base import SmashedAttack, SmashedData

MIN_ROWS = 16
"""Auxiliary rows below which nothing is learned."""
HOLDOUT = 8
"""One auxiliary row in so many is kept to judge what was learned."""


@dataclass(frozen=True)
class Dictionary:
    """What the client half sends of every category that auxiliary rows show; E categories of F columns, column by column.

    Attributes:
        embeddings: (E, D).
        columns: (E,) int64.
        categories: (E,) int64.
        log_prior: (E,), logarithm of the share of auxiliary rows that have it.
    """

    embeddings: Tensor
    columns: Tensor
    categories: Tensor
    log_prior: Tensor

    @classmethod
    def of(cls, rows: Tensor, embedded: Tensor) -> Dictionary:
        """That of rows (n, F) and their embeddings (n, F, D)."""
        found: list[tuple[Tensor, int, Tensor, Tensor]] = []
        for column in range(rows.shape[1]):
            categories, inverse, counts = torch.unique(rows[:, column], return_inverse=True, return_counts=True)
            first = torch.empty_like(categories).scatter_(0, inverse, torch.arange(len(rows), device=rows.device))
            prior = (counts.to(embedded) / len(rows)).log()
            found.append((embedded[first, column], column, categories, prior))
        return cls(
            torch.cat([one[0] for one in found]),
            torch.cat([torch.full_like(one[2], one[1]) for one in found]),
            torch.cat([one[2] for one in found]),
            torch.cat([one[3] for one in found]),
        )

    def of_column(self, column: int) -> slice:
        """Its categories' places."""
        at = torch.nonzero(self.columns == column).flatten()
        return slice(int(at[0]), int(at[-1]) + 1)


@dataclass(frozen=True, repr=False)
class TableAttack(SmashedAttack[Cells]):
    """Base of attacks that guess rows of a table from their embeddings, by what they learn from auxiliary rows."""

    on_images: ClassVar[bool] = False
    on_tables: ClassVar[bool] = True
    needs_auxiliary: ClassVar[bool] = True

    def failed(self, observation: SmashedData, reason: str) -> Cells:
        """No category at all."""
        fields, dim = observation.features.shape[-2:]
        categories = torch.full((observation.num_targets, fields), -1)
        return Cells(categories, torch.zeros(observation.num_targets, fields, dim), failure=reason)


def auxiliary_rows(knowledge: Knowledge, generator: torch.Generator) -> tuple[Sender, Tensor, Tensor]:
    """The sender, and auxiliary rows (n, 1, F, 1) to learn from and to hold out.

    Raises:
        AttackError: Outside of split learning; of images; with fewer than 16 rows.
    """
    if knowledge.sender is None:
        raise AttackError("embeddings of rows are what a client half sends: split learning only")
    rows = knowledge.auxiliary.images
    if rows.shape[1] != 1 or rows.shape[3] != 1:
        raise AttackError(f"auxiliary examples are images {tuple(rows.shape[1:])}; this attack reads rows of a table")
    if len(rows) < MIN_ROWS:
        raise AttackError(f"rows are read with {MIN_ROWS} auxiliary rows or more, there are {len(rows)}")
    shuffled = rows[torch.randperm(len(rows), generator=generator).to(rows.device)]
    kept, held = shuffled.tensor_split([len(rows) - len(rows) // HOLDOUT])
    return knowledge.sender, kept, held


@torch.no_grad()
def embeddings_of(sender: Sender, rows: Tensor) -> Tensor:
    """What the client half makes of rows (n, 1, F, 1), before any defence of smashed data: (n, F, D)."""
    return sender.edge.encode(sender.edge.embed(normalise(rows, sender))).float()


def categories_of(rows: Tensor) -> Tensor:
    """Rows (n, 1, F, 1) as numbers of categories (n, F) int64."""
    return rows[:, 0, :, 0].round().long()


def check_features(features: Tensor, fields: int, dim: int) -> None:
    """Whether smashed data (..., N, D) are those of such rows.

    Raises:
        AttackError: When they are not, or are not finite.
    """
    if tuple(features.shape[-2:]) != (fields, dim):
        raise AttackError(
            f"smashed data has shape {tuple(features.shape[-2:])} per row, that of auxiliary rows {(fields, dim)}"
        )
    if not torch.isfinite(features).all():
        raise AttackError("smashed data holds NaN or infinite values")
