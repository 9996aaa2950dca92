"""The two halves of a split model: the client's sends tokens, the server's classifies them.

The client half prepends its class token to its blocks and drops it from what it sends; the server half prepends a class token of
its own, with the same initial value (Yao et al., ICDM 2022, reference code).
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

Embedding = nn.Module
"""Images (B, C, H, W) -> tokens (B, N, D), row by row."""


class EdgeHalf(nn.Module):
    """The client half: embedding, then ``edge_blocks`` blocks (see ``attacks.smashed.base.EdgeHalf``).

    Attributes:
        grid: Rows and columns of tokens.
        patch_size: Side in pixels of what one token stands for.
        dim: Length of an embedded token.
        branches: Of DIFM, in place of blocks; they put ``factors`` numbers before each token.
    """

    def __init__(
        self,
        embedding: Embedding,
        blocks: Sequence[nn.Module],
        class_token: Tensor,
        *,
        grid: tuple[int, int],
        patch_size: int,
        dim: int,
        branches: nn.Module | None = None,
        factors: int = 0,
    ) -> None:
        super().__init__()
        self.grid, self.patch_size, self.dim, self._factors = grid, patch_size, dim, factors
        self.branches = branches
        self.embedding = embedding
        self.blocks = nn.Sequential(*blocks)
        # Without blocks the class token would be a weight that nothing uses.
        self.class_token = nn.Parameter(class_token.clone()) if blocks else None

    @property
    def num_tokens(self) -> int:
        """Tokens of one image."""
        return self.grid[0] * self.grid[1]

    @property
    def cardinalities(self) -> tuple[int, ...]:
        """Categories of each column, where it looks up rows of a table; else empty."""
        sizes: tuple[int, ...] = getattr(self.embedding, "cardinalities", ())
        return sizes

    @property
    def token_length(self) -> int:
        """Numbers of a token that leaves ``encode``, before smashed-data defences."""
        return self.dim + self._factors

    @property
    def keeps_slots(self) -> bool:
        """Whether tokens leave in column order despite a shuffle, as the outputs of DIFM's branches do."""
        return self.branches is not None

    def embed(self, images: Tensor) -> Tensor:
        """Normalised images (B, C, H, W) -> tokens (B, N, D), row by row."""
        tokens: Tensor = self.embedding(images)
        return tokens

    def encode(self, tokens: Tensor, unshuffled: Tensor | None = None) -> Tensor:
        """Tokens (B, N, D) through the blocks, a class token in front that is dropped behind: (B, N, D).

        DIFM's branches also take the tokens ``unshuffled``, as they were embedded (None: the same), and give (B, N,
        ``token_length``).
        """
        if self.branches is not None:
            made: Tensor = self.branches(tokens, tokens if unshuffled is None else unshuffled)
            return made
        if self.class_token is None:
            return tokens
        encoded: Tensor = self.blocks(torch.cat([self.class_token.expand(len(tokens), -1, -1), tokens], 1))
        return encoded[:, 1:]

    def embeddings_in(self, features: Tensor) -> Tensor:
        """The embeddings (..., N, D) among smashed data (..., N, ``token_length``) of a table."""
        return features[..., self.token_length - self.dim :]

    def forward(self, images: Tensor) -> Tensor:
        """Smashed data of normalised images, without defences."""
        return self.encode(self.embed(images))


class ServerHalf(nn.Module):
    """The server half of a split model: smashed data (B, N, D) -> logits (B, K)."""

    def fast_parameters(self) -> list[nn.Parameter]:
        """Parameters trained at ``learning-rate``, all unless some are pretrained; others have ``block-learning-rate``."""
        return list(self.parameters())


Halves = tuple[EdgeHalf, ServerHalf]


class TransformerServer(ServerHalf):
    """Adapter where tokens have another length, class token, blocks, norm, head: (B, N, D) -> logits."""

    def __init__(
        self, blocks: Sequence[nn.Module], class_token: Tensor, norm: nn.Module, head: nn.Module, adapter: nn.Module
    ) -> None:
        super().__init__()
        self.adapter = adapter
        self.class_token = nn.Parameter(class_token.clone())
        self.blocks = nn.Sequential(*blocks)
        self.norm = norm
        self.head = head

    def forward(self, features: Tensor) -> Tensor:
        """Smashed data (B, N, D) -> logits (B, K)."""
        tokens = self.adapter(features)
        whole = torch.cat([self.class_token.expand(len(tokens), -1, -1), tokens], 1)
        logits: Tensor = self.head(self.norm(self.blocks(whole)[:, 0]))
        return logits

    def fast_parameters(self) -> list[nn.Parameter]:
        """Parameters of head and adapter, which start from random weights even where the blocks are pretrained."""
        return [*self.adapter.parameters(), *self.head.parameters()]


class RawPatches(nn.Module):
    """Cuts images into patches without learning anything: token index (row of the patch, column, channel)."""

    def __init__(self, patch_size: int) -> None:
        super().__init__()
        self.patch_size = patch_size

    def forward(self, images: Tensor) -> Tensor:
        """(B, C, H, W) -> (B, N, p * p * C)."""
        size = self.patch_size
        batch, channels, height, width = images.shape
        cut = images.view(batch, channels, height // size, size, width // size, size)
        return cut.permute(0, 2, 4, 3, 5, 1).reshape(batch, -1, size * size * channels)
