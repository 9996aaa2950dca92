"""Split models by name: vision transformers without position embedding, cut in two, and DIFM for tables.

A transformer's cut lies behind the embedding and the first ``edge_blocks`` blocks. Each half has a class token of its own (see
``clients.models.split.halves``), so that the cut model differs from the uncut one, shuffling or not.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from clients.models.library import ModelError
from clients.models.pretrained import load_pretrained
from clients.models.split.difm import NUM_FACTORS, DIFMBranches, DIFMPrediction, DIFMServer, FieldEmbedding
from clients.models.split.halves import EdgeHalf, Embedding, Halves, TransformerServer
from clients.models.split.t2t import PerformerAttention, SoftmaxAttention, TokensToToken
from defenses.spec import suggest
from defenses.tensors import ImageShape

if TYPE_CHECKING:
    from timm.models.vision_transformer import VisionTransformer

WIDEST_EMBEDDING = 4096
"""Of a field of a table."""


@dataclass(frozen=True)
class SplitShape:
    """Sizes of a split transformer.

    Attributes:
        patch_size: Side of a patch in pixels, which divides both sides of an image.
        width: Length D of a token inside the transformer.
        depth: Transformer blocks of both halves together.
        heads: Attention heads, which divide ``width``.
        edge_blocks: Blocks of the client half, below ``depth``.
        widening: Length of a token on the wire over that of an embedded one.
    """

    patch_size: int
    width: int
    depth: int
    heads: int
    edge_blocks: int
    widening: int = 1


def build_split_model(
    name: str,
    *,
    num_classes: int,
    input_shape: ImageShape,
    shape: SplitShape,
    seed: int,
    pretrained: str = "",
    cardinalities: Sequence[int] = (),
) -> Halves:
    """Both halves, in train mode, on the CPU.

    Args:
        name: See ``split_model_names``.
        num_classes: At least 2.
        input_shape: (C, H, W) of one image.
        shape: Sizes.
        seed: Random weights depend on it alone. The caller's random state stays as it was.
        pretrained: Path of a file for ``load_pretrained``, whose weights replace all random ones but those of head and
            adapter; raw patches leave its embedding unused. "": none. Only "vit" has the layers of timm throughout.
        cardinalities: Categories of each column, where examples are rows of a table; empty for images.

    Raises:
        ModelError: When the sizes do not fit each other or the images, or the file cannot be used.
    """
    known = split_model_names()
    if name not in known:
        raise ModelError(f"unknown split model {name!r}{suggest(name, known)}; known: {', '.join(known)}")
    if (name in _OF_TABLES) != bool(cardinalities):
        what, fitting = ("rows of a table", _OF_TABLES) if cardinalities else ("images", _BUILDERS)
        raise ModelError(f"model is {name!r}; allowed for {what}: {', '.join(fitting)}")
    if name not in _OF_TABLES:
        _check(num_classes, input_shape, shape)
    with torch.random.fork_rng(devices=[]):
        # Seeding the CPU generator alone: torch.manual_seed would also reset the caller's accelerator streams.
        torch.default_generator.manual_seed(seed)
        if name in _OF_TABLES:
            return _OF_TABLES[name](num_classes, cardinalities, shape)
        whole = _BUILDERS[name](num_classes, input_shape, shape)
        if pretrained:
            load_pretrained(whole, pretrained)
        return _cut(whole, input_shape, shape)


def split_model_names() -> dict[str, str]:
    """Name -> one line with its source, for listings."""
    return {
        "vit": "vision transformer without position embedding (Dosovitskiy et al. 2021), blocks of timm, any size",
        "t2t": "T2T-ViT_t without position embedding (Yuan et al. 2021): overlapping tokens that have seen the whole image",
        "t2t-performer": "the same with linear attention inside the tokens module, the backbone of PatchShuffling",
        "difm": "tables: factorisation machine with attention (Lu et al. 2020), width 4; no patch-size, depth or edge-blocks",
        "difm-factors": "the same, cut before its prediction layer (Yao et al. 2022): a shuffle is of one branch's input alone",
    }


def t2t(
    attention: type[SoftmaxAttention], num_classes: int, input_shape: ImageShape, shape: SplitShape
) -> VisionTransformer:
    """A T2T-ViT; 512 wide, 24 deep, 8 heads, patches of 16 is T2T-ViT-24. Its tokens are no crops: see ``TokensToToken``."""

    def embed(
        img_size: tuple[int, int], patch_size: int, in_chans: int, embed_dim: int, **_unused: object
    ) -> TokensToToken:
        return TokensToToken(
            img_size=img_size, patch_size=patch_size, in_chans=in_chans, embed_dim=embed_dim, attention=attention
        )

    return _transformer(num_classes, input_shape, shape, mlp_ratio=3.0, qkv_bias=False, embed_layer=embed)


def _transformer(
    num_classes: int,
    input_shape: ImageShape,
    shape: SplitShape,
    *,
    mlp_ratio: float,
    qkv_bias: bool,
    embed_layer: Callable[..., Embedding] | None = None,
) -> VisionTransformer:
    """A transformer of timm, which also draws the weights of the embedding: its own patch embedding where none is given."""
    # timm takes seconds to import, which only who builds a split model need wait for.
    from timm.models.vision_transformer import VisionTransformer

    given: dict[str, Any] = {} if embed_layer is None else {"embed_layer": embed_layer}
    return VisionTransformer(
        img_size=input_shape[1:],
        patch_size=shape.patch_size,
        in_chans=input_shape[0],
        num_classes=num_classes,
        embed_dim=shape.width,
        depth=shape.depth,
        num_heads=shape.heads,
        mlp_ratio=mlp_ratio,
        qkv_bias=qkv_bias,
        pos_embed="none",
        **given,
    )


def _cut(whole: VisionTransformer, input_shape: ImageShape, shape: SplitShape) -> Halves:
    grid = (input_shape[1] // shape.patch_size, input_shape[2] // shape.patch_size)
    assert whole.cls_token is not None
    blocks, class_token = list(whole.blocks), whole.cls_token.detach()
    embedding: Embedding = whole.patch_embed
    on_wire = shape.widening * shape.width
    # Two layers, the first as wide as what arrives: the reference code's for SpectralShuffle (1536-1536-768).
    adapter = nn.Sequential(nn.Linear(on_wire, on_wire), nn.GELU(), nn.Linear(on_wire, shape.width))
    edge = EdgeHalf(
        embedding, blocks[: shape.edge_blocks], class_token, grid=grid, patch_size=shape.patch_size, dim=shape.width
    )
    server = TransformerServer(
        blocks[shape.edge_blocks :],
        class_token,
        whole.norm,
        whole.head,
        nn.Identity() if on_wire == shape.width else adapter,
    )
    return edge, server


def _check(num_classes: int, input_shape: ImageShape, shape: SplitShape) -> None:
    _, height, width = input_shape
    size = shape.patch_size
    if num_classes < 2:
        raise ModelError(f"num_classes is {num_classes}; a classifier needs at least 2")
    fits = [p for p in range(1, max(height, width)) if height % p == 0 == width % p]
    if size not in fits:
        raise ModelError(
            f"patch-size is {size}; allowed: {_listed(fits)}, which divide images of {height} x {width} pixels into at "
            "least two tokens"
        )
    for key, value in (("width", shape.width), ("depth", shape.depth)):
        if value < 1:
            raise ModelError(f"{key} is {value}; allowed: 1 or more")
    _check_heads(shape)
    if not 0 <= shape.edge_blocks < shape.depth:
        raise ModelError(f"edge-blocks is {shape.edge_blocks}; allowed: 0 to {shape.depth - 1}, below depth")


def _check_heads(shape: SplitShape) -> None:
    divisors = [heads for heads in range(1, shape.width + 1) if shape.width % heads == 0]
    if shape.heads not in divisors:
        raise ModelError(f"heads is {shape.heads}; allowed: {_listed(divisors)}, which divide width = {shape.width}")


def _listed(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers)) or "none"


_BUILDERS: dict[str, Callable[[int, ImageShape, SplitShape], VisionTransformer]] = {
    # Its patch embedding is a strided convolution; 768 wide, 12 deep, 12 heads, patches of 16 is ViT-B/16.
    "vit": functools.partial(_transformer, mlp_ratio=4.0, qkv_bias=True),
    "t2t": functools.partial(t2t, SoftmaxAttention),
    "t2t-performer": functools.partial(t2t, PerformerAttention),
}
DEFAULT_WIDTHS = {"vit": 64, "t2t": 64, "t2t-performer": 64, "difm": 4, "difm-factors": 4}
"""Of split models where the user names none."""


def _difm(factors_at_edge: bool, num_classes: int, cardinalities: Sequence[int], shape: SplitShape) -> Halves:
    if num_classes != 2:
        raise ModelError(f"model is difm, and the data have {num_classes} classes; allowed: 2")
    if not 1 <= shape.width <= WIDEST_EMBEDDING:
        raise ModelError(f"width is {shape.width}; allowed with a table: 1 to {WIDEST_EMBEDDING}")
    _check_heads(shape)
    fields, dim = len(cardinalities), shape.width
    embedding, token = FieldEmbedding(cardinalities, dim), torch.zeros(1, 1, dim)
    branches = DIFMBranches(fields, dim, shape.heads) if factors_at_edge else None
    factors = NUM_FACTORS if factors_at_edge else 0
    edge = EdgeHalf(embedding, [], token, grid=(fields, 1), patch_size=1, dim=dim, branches=branches, factors=factors)
    return edge, DIFMPrediction(fields, dim) if factors_at_edge else DIFMServer(fields, dim, shape.heads)


_OF_TABLES: dict[str, Callable[[int, Sequence[int], SplitShape], Halves]] = {
    "difm": functools.partial(_difm, False),
    "difm-factors": functools.partial(_difm, True),
}
