"""DIFM, a factorisation machine for tables, cut behind its embeddings or before its prediction layer.

A row of F categories becomes F embeddings v_1 ... v_F of length D. DIFM computes two factors for every field, one by
self-attention among the embeddings ("vector-wise") and one by a perceptron on all their numbers ("bit-wise"), and its
prediction layer weighs a factorisation machine with their sum:

    m = P_vec Attention(v) + P_bit MLP(v),    logit = b + sum_i m_i <a_i, v_i> + sum_{i<j} <m_i v_i, m_j v_j>

Source: Lu et al., "A Dual Input-aware Factorization Machine for CTR Prediction", IJCAI 2020, section 3. There the linear part has a
weight w_i of its own for every category, which a client would have to send as a further number of each embedding; here w_i =
<a_i, v_i> is read from what is sent. Columns of numbers are put into buckets (``clients.data.tables``) and are fields as well.
"""

import itertools
import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from clients.models.split.halves import ServerHalf

NUM_FACTORS = 2
"""Of every field: m_vec and m_bit."""
HIDDEN = (256, 128)
"""Widths of the bit-wise perceptron, as in the paper's public implementations."""


class FieldEmbedding(nn.Module):
    """Look up each cell of a row as D = ``dim`` values, at first N(0, 1), of each category: the client half of a table."""

    def __init__(self, cardinalities: Sequence[int], dim: int) -> None:
        super().__init__()
        self.cardinalities = tuple(cardinalities)
        self.table = nn.Embedding(sum(cardinalities), dim)

    def forward(self, rows: Tensor) -> Tensor:
        """Whole numbers (B, 1, F, 1), in any dtype, to embeddings (B, F, D); ``ValueError`` for an unknown category."""
        codes = rows[:, 0, :, 0].long()
        sizes = torch.tensor(self.cardinalities, device=codes.device)
        if codes.shape[1] != len(sizes) or (codes < 0).any() or (codes >= sizes).any():
            raise ValueError(f"rows hold numbers that are no categories; expected {len(sizes)} columns below {sizes}")
        embedded: Tensor = self.table(codes + sizes.cumsum(0) - sizes)
        return embedded


class VectorWise(nn.Module):
    """Multi-head self-attention among fields, with a residual projection and a ReLU: (B, F, D) -> (B, F, D).

    Source: Song et al., "AutoInt", CIKM 2019, Eq. 5 to 8, with scores over sqrt(D / heads), as DIFM's implementations have it.
    """

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value, self.residual = (nn.Linear(dim, dim, bias=False) for _ in range(4))
        for layer in (self.query, self.key, self.value, self.residual):
            nn.init.normal_(layer.weight, std=0.05)

    def forward(self, tokens: Tensor) -> Tensor:
        """Mixes fields."""
        batch, fields, dim = tokens.shape

        def split(mapped: Tensor) -> Tensor:
            return mapped.view(batch, fields, self.heads, dim // self.heads).transpose(1, 2)

        query, key, value = (split(layer(tokens)) for layer in (self.query, self.key, self.value))
        weights = (query @ key.transpose(2, 3) / math.sqrt(dim // self.heads)).softmax(3)
        return torch.relu((weights @ value).transpose(1, 2).reshape(batch, fields, dim) + self.residual(tokens))


class DIFMBranches(nn.Module):
    """Both branches: embeddings (B, F, D) to the two factors of every field.

    As part of a client half it is what precedes the prediction layer (Fig. 8 of Yao et al., ICDM 2022): a token on the wire
    is (m_vec, m_bit, v) of one field, all that the prediction layer takes. The paper's edge may already have multiplied v by
    the sum of the factors, which reveals the direction of v; its attacker reads m_vec, so that this is on the wire.

    The attention's ``heads`` divide ``dim`` D.
    """

    def __init__(self, fields: int, dim: int, heads: int) -> None:
        super().__init__()
        self.vector_wise = VectorWise(dim, heads)
        layers = [
            layer for pair in itertools.pairwise((fields * dim, *HIDDEN)) for layer in (nn.Linear(*pair), nn.ReLU())
        ]
        self.bit_wise = nn.Sequential(*layers)
        self.from_vector = nn.Linear(fields * dim, fields, bias=False)
        self.from_bit = nn.Linear(HIDDEN[-1], fields, bias=False)

    def vector_factors(self, features: Tensor) -> Tensor:
        """m_vec (B, F), the paper's vector-wise factors, of embeddings (B, F, D)."""
        factors: Tensor = self.from_vector(self.vector_wise(features).flatten(1))
        return factors

    def bit_factors(self, features: Tensor) -> Tensor:
        """m_bit (B, F), those of the perceptron."""
        factors: Tensor = self.from_bit(self.bit_wise(features.flatten(1)))
        return factors

    def forward(self, tokens: Tensor, unshuffled: Tensor) -> Tensor:
        """The client's output (B, F, 2 + D), from embeddings (B, F, D) that were shuffled and the same in order."""
        return torch.cat([torch.stack([self.vector_factors(tokens), self.bit_factors(unshuffled)], 2), unshuffled], 2)


class DIFMPrediction(ServerHalf):
    """The prediction layer: (m_vec, m_bit, v) of every field (B, F, 2 + D) to two logits (B, 2)."""

    def __init__(self, fields: int, dim: int) -> None:
        super().__init__()
        self.linear = nn.Parameter(0.05 * torch.randn(fields, dim))
        self.bias = nn.Parameter(torch.zeros(()))

    @staticmethod
    def vector_factors(features: Tensor) -> Tensor:
        """m_vec (B, F), as it was sent."""
        return features[..., 0]

    def predict(self, factors: Tensor, embeddings: Tensor) -> Tensor:
        """Factors (B, F) and embeddings (B, F, D) -> logits (B, 2); that of class 0 is always 0."""
        linear = (factors * (self.linear * embeddings).sum(2)).sum(1)
        refined = factors.unsqueeze(2) * embeddings
        pairs = (refined.sum(1).square() - refined.square().sum(1)).sum(1) / 2
        logit = self.bias + linear + pairs
        return torch.stack([torch.zeros_like(logit), logit], 1)

    def forward(self, features: Tensor) -> Tensor:
        """Smashed data -> logits."""
        return self.predict(features[..., :NUM_FACTORS].sum(2), features[..., NUM_FACTORS:])


class DIFMServer(ServerHalf):
    """The server half behind embeddings: (B, F, D), in whatever order they arrive, to two logits (B, 2); see ``DIFMBranches``."""

    def __init__(self, fields: int, dim: int, heads: int) -> None:
        super().__init__()
        self.branches = DIFMBranches(fields, dim, heads)
        self.prediction = DIFMPrediction(fields, dim)

    def vector_factors(self, features: Tensor) -> Tensor:
        """m_vec (B, F), the paper's vector-wise factors, of embeddings (B, F, D)."""
        return self.branches.vector_factors(features)

    def forward(self, features: Tensor) -> Tensor:
        """Embeddings (B, F, D) -> logits (B, 2)."""
        factors = self.branches.vector_factors(features) + self.branches.bit_factors(features)
        return self.prediction.predict(factors, features)
