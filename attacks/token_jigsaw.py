"""Undoing a shuffle of tokens from one sending: decode every token to its patch, place the patches."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar, Self

import torch
from torch import Tensor

from attacks.base import AttackError, Knowledge, Reconstruction
from attacks.feature_inversion import sender_of
from attacks.smashed import SmashedAttack, SmashedData
from attacks.token_positions import TokenReader, from_patches, infer_order, place, to_patches, train_reader
from defenses.checks import is_whole, require


@dataclass(frozen=True)
class Learned:
    """What ``TokenJigsaw.fit`` learned.

    Attributes:
        reader: Reads received tokens.
        mean_patches: (N, P), the auxiliary images' mean.
    """

    reader: TokenReader
    mean_patches: Tensor


@dataclass(frozen=True, repr=False)
class TokenJigsaw(SmashedAttack[Reconstruction]):
    learned: Learned | None = field(default=None, repr=False, compare=False)
    iterations: int = 500
