"""What attacks on smashed tables share: auxiliary rows, what the client half makes of every category, and the failed guess."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from attacks.base import Knowledge
from attacks.guesses import Cells
from attacks.normalisation import normalise
from attacks.observations import AttackError
from attacks.refinement.restoration import kept_and_held
from attacks.sender import Sender
from attacks.smashed.base import SmashedAttack, SmashedData
from defenses.checks import algorithm

CHUNK = 65536
"""Rows that are looked up at once."""


@dataclass(frozen=True)
class Dictionary:
    """What the client half makes of every category; E categories of F columns, column by column.

    Attributes:
        embeddings: (E, D).
        columns: (E,) int64.
        categories: (E,) int64.
        log_prior: (E,), logarithm of a category's probability in its column.
    """

    embeddings: Tensor
    columns: Tensor
    categories: Tensor
    log_prior: Tensor

    @classmethod
    def of(cls, rows: Tensor, table: Sequence[Tensor]) -> Dictionary:
        """That of a whole table, of each column (K, D) embeddings, with the shares that auxiliary rows (n, F) show.

        All K categories of a column that no row shows together count as one row: p = (count + 1 / K) / (n + 1).
        """
        prior = [
            (torch.bincount(rows[:, at].cpu(), minlength=len(own)).to(own) + 1 / len(own)) / (len(rows) + 1)
            for at, own in enumerate(table)
        ]
        return cls(
            torch.cat([*table]),
            torch.cat([torch.full((len(own),), at, device=own.device) for at, own in enumerate(table)]),
            torch.cat([torch.arange(len(own), device=own.device) for own in table]),
            torch.cat(prior).log(),
        )

    def seen(self, num_rows: int) -> Dictionary:
        """That of the categories that one or more of so many auxiliary rows show: p of at least 1 / (n + 1)."""
        at = torch.nonzero(self.log_prior.exp() * (num_rows + 1) > 1).flatten()
        return Dictionary(self.embeddings[at], self.columns[at], self.categories[at], self.log_prior[at])

    def of_column(self, column: int) -> slice:
        """Its categories' places."""
        at = torch.nonzero(self.columns == column).flatten()
        return slice(int(at[0]), int(at[-1]) + 1)


@algorithm
class TableAttack(SmashedAttack[Cells], data=("tables",), needs_auxiliary=True, guesses="cells"):
    """Base of attacks that guess rows of a table from their embeddings, by what they learn from auxiliary rows."""

    def failed(self, observation: SmashedData, reason: str) -> Cells:
        """No category at all."""
        fields, dim = observation.features.shape[-2:]
        categories = torch.full((observation.num_targets, fields), -1)
        return Cells(categories, torch.zeros(observation.num_targets, fields, dim), failure=reason)


def auxiliary_rows(knowledge: Knowledge, generator: torch.Generator) -> tuple[Sender, Tensor, Tensor]:
    """The sender, and auxiliary rows (n, 1, F, 1) to learn from and to hold out."""
    sender, rows = knowledge.require_sender(), knowledge.auxiliary.images
    if rows.shape[1] != 1 or rows.shape[3] != 1:
        raise AttackError(f"auxiliary examples are images {tuple(rows.shape[1:])}; allowed: rows of a table")
    kept, held = (rows[chosen.to(rows.device)] for chosen in kept_and_held(len(rows), generator))
    return sender, kept, held


@torch.no_grad()
def embeddings_of(sender: Sender, rows: Tensor) -> Tensor:
    """What the client half looks up for rows (n, 1, F, 1), before any defence of smashed data: (n, F, D)."""
    embedded: Tensor = sender.edge.embed(normalise(rows, sender)).float()
    return embedded


def table_of(sender: Sender) -> list[Tensor]:
    """The client half's whole public table: of each column (K, D), one embedding for each of its categories."""
    sizes = sender.edge.cardinalities
    if not sizes:
        raise AttackError("the client half has no table of embeddings; expected one of a model of tables")
    columns: list[list[Tensor]] = [[] for _ in sizes]
    weight = next(sender.edge.parameters(), None)
    limits = torch.tensor(sizes, device=None if weight is None else weight.device)
    for codes in torch.split(torch.arange(max(sizes), device=limits.device), CHUNK):
        embedded = embeddings_of(sender, torch.minimum(codes.unsqueeze(1), limits - 1).float()[:, None, :, None])
        for column, size in enumerate(sizes):
            columns[column].append(embedded[: max(0, size - int(codes[0])), column])
    return [torch.cat(parts) for parts in columns]


def categories_of(rows: Tensor) -> Tensor:
    """Rows (n, 1, F, 1) as numbers of categories (n, F) int64."""
    return rows[:, 0, :, 0].round().long()
