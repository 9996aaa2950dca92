"""The tokens-to-token module of T2T-ViT: an image becomes tokens in three overlapping steps with attention in between.

Source: Yuan et al., "Tokens-to-Token ViT" (ICCV 2021), sections 3.1 and 3.3. Random features: Choromanski et al., "Rethinking
Attention with Performers" (ICLR 2021), section 2.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

TOKEN_DIM = 64
NUM_FEATURES = TOKEN_DIM // 2
"""Random features of the Performer variant (kernel ratio 0.5)."""


class SoftmaxAttention(nn.Module):
    """Single-head attention into tokens of another length; the values are the shortcut.

    Scores are divided by the root of the length of queries and keys; the released code divides by that of the incoming
    tokens' length.
    """

    qkv_bias = False

    def __init__(self, into: int, dim: int) -> None:
        super().__init__()
        self.qkv = nn.Linear(into, 3 * dim, bias=self.qkv_bias)
        self.proj = nn.Linear(dim, dim)

    def forward(self, tokens: Tensor) -> Tensor:
        """(B, N, into) -> (B, N, dim)."""
        queries, keys, values = self.qkv(tokens).chunk(3, -1)
        result: Tensor = values + self.proj(self.attend(queries, keys, values))
        return result

    def attend(self, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """softmax(q k^T / sqrt(dim)) v of tensors (B, N, dim)."""
        # Fused kernels, which never hold the N x N scores, take tensors with a dimension for heads only.
        heads = queries.unsqueeze(1), keys.unsqueeze(1), values.unsqueeze(1)
        return F.scaled_dot_product_attention(*heads).squeeze(1)


class PerformerAttention(SoftmaxAttention):
    """``SoftmaxAttention`` in time linear in N: frozen random features estimate exp(q k^T / sqrt(dim)) without bias.

    With rows w of ``random_features``, exp(q k^T) is the mean of exp(w q - |q|^2 / 2) exp(w k - |k|^2 / 2). The code of
    T2T-ViT leaves out the division by sqrt(dim) and gives w the length sqrt(NUM_FEATURES), with which the features estimate
    another kernel than the softmax.
    """

    qkv_bias = True
    random_features: Tensor

    def __init__(self, into: int, dim: int, num_features: int = NUM_FEATURES) -> None:
        super().__init__(into, dim)
        # A buffer: frozen, yet part of what client and server must agree on.
        self.register_buffer("random_features", orthogonal_features(num_features, dim))

    def attend(self, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """An estimate of softmax(q k^T / sqrt(dim)) v of tensors (B, N, dim)."""
        scale = queries.shape[-1] ** -0.25
        queries, keys = queries * scale, keys * scale
        # A factor per query, such as exp(-|q|^2 / 2), cancels between numerator and denominator.
        log_queries = queries @ self.random_features.T
        log_keys = keys @ self.random_features.T - keys.square().sum(-1, keepdim=True) / 2
        # So does what moves from keys to queries per feature. The largest exponents become 0, so that nothing overflows
        # and no denominator is below 1; being constants in effect, the shifts need no gradient.
        shift = log_keys.detach().amax(1, keepdim=True)
        key_features = (log_keys - shift).exp()
        log_queries = log_queries + shift
        query_features = (log_queries - log_queries.detach().amax(-1, keepdim=True)).exp()
        numerator = query_features @ (key_features.transpose(1, 2) @ values)
        return numerator / (query_features @ key_features.sum(1).unsqueeze(-1))


def orthogonal_features(num_features: int, dim: int) -> Tensor:
    """Standard normal vectors (num_features, dim) that are orthogonal in groups of ``dim``, from the global generator."""
    groups = [nn.init.orthogonal_(torch.empty(dim, dim)) for _ in range(-(-num_features // dim))]
    lengths: Tensor = torch.randn(num_features, dim).norm(dim=1, keepdim=True)
    return lengths * torch.cat(groups)[:num_features]


class TokenTransformer(nn.Module):
    """A transformer block into tokens of another length; the multilayer perceptron is as wide as these (ratio 1)."""

    def __init__(self, into: int, dim: int, attention: type[SoftmaxAttention]) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(into)
        self.attention = attention(into, dim)
        self.norm2 = nn.LayerNorm(dim)
        self.mlp = nn.Sequential(nn.Linear(dim, dim), nn.GELU(), nn.Linear(dim, dim))

    def forward(self, tokens: Tensor) -> Tensor:
        """(B, N, into) -> (B, N, dim)."""
        tokens = self.attention(self.norm1(tokens))
        result: Tensor = tokens + self.mlp(self.norm2(tokens))
        return result


def soft_split_strides(patch_size: int) -> tuple[int, int, int]:
    """Three factors of ``patch_size``, largest first and as equal as possible: 4, 2, 2 for the paper's 16."""
    triples = [
        (first, second, patch_size // (first * second))
        for first in range(1, patch_size + 1)
        for second in range(1, first + 1)
        if patch_size % (first * second) == 0 and patch_size // (first * second) <= second
    ]
    # For a given product, factors are the more equal the smaller their sum.
    return min(triples, key=lambda triple: (sum(triple), triple))


def split_kernel(stride: int) -> int:
    """Side of the windows of a soft split: 2s - 1, and 3 for stride 1, so that windows always overlap."""
    return 2 * stride - 1 if stride > 1 else 3


def soft_split(features: Tensor, stride: int) -> Tensor:
    """Overlapping windows of a map as tokens: (B, C, H, W) -> (B, H / s * W / s, C * kernel * kernel), row by row.

    Padding by s // 2, or 1 for stride 1, makes (H + 2 padding - kernel) // s + 1 equal to H / s for every s that divides H.
    """
    return F.unfold(features, split_kernel(stride), padding=max(1, stride // 2), stride=stride).transpose(1, 2)


class TokensToToken(nn.Module):
    """Images (B, C, H, W) -> tokens (B, H / p * W / p, embed_dim), row by row, where p is the patch size, which divides H and W.

    The map that the image is goes through soft split, token transformer, soft split, token transformer, soft split and a linear
    projection, each transformer's tokens becoming a map again; p is the product of the strides of the splits. Windows overlap,
    and each token transformer lets every token see the whole image. So a token has a place in the grid, but it is no local crop
    of the image; there is neither a position embedding nor a class token. The released code's Performer variant also has dropout
    of 0.1, which the paper does not mention; here there is none.
    """

    def __init__(
        self,
        *,
        img_size: tuple[int, int],
        patch_size: int,
        in_chans: int,
        embed_dim: int,
        attention: type[SoftmaxAttention],
    ) -> None:
        super().__init__()
        self.num_patches = math.prod(side // patch_size for side in img_size)
        self.strides = soft_split_strides(patch_size)
        first, second, third = (split_kernel(stride) ** 2 for stride in self.strides)
        self.transformers = nn.ModuleList(
            [
                TokenTransformer(in_chans * first, TOKEN_DIM, attention),
                TokenTransformer(TOKEN_DIM * second, TOKEN_DIM, attention),
            ]
        )
        self.project = nn.Linear(TOKEN_DIM * third, embed_dim)

    def forward(self, images: Tensor) -> Tensor:
        """Images (B, C, H, W) -> tokens (B, N, embed_dim)."""
        features = images
        for stride, transformer in zip(self.strides[:2], self.transformers, strict=True):
            rows, columns = (side // stride for side in features.shape[2:])
            features = transformer(soft_split(features, stride)).transpose(1, 2).unflatten(2, (rows, columns))
        projected: Tensor = self.project(soft_split(features, self.strides[2]))
        return projected
