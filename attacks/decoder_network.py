"""A network from smashed data to images, and how one is trained: shared by all attacks that learn to invert what is sent.

Source: the decoder of He et al., "Masked Autoencoders Are Scalable Vision Learners", 2022, as Yao et al. (ICDM 2022) use it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from attacks.base import AttackError, Knowledge, Reconstruction


class AttentionBlock(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm = nn.LayerNorm(width)
        self.query = nn.Linear(width, width)
        self.key_value = nn.Linear(width, 2 * width)
        self.out = nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x, context=None):
        n = self.norm(x)
        c = n if context is None else context
        q = self.query(n).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        k, v = self.key_value(c).unflatten(-1, (2, self.heads, -1)).permute(2, 0, 3, 1, 4)
        a = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        x = x + self.out(a)
        return x + self.mlp(x)
