"""A small vision transformer for small images."""

from collections.abc import Callable

from torch import nn

from clients.models.library import ImageSizeError, ModelError, without_in_place
from defenses.tensors import ImageShape

PATCH = 4
HEADS = 4
MOST = 1024


def vit_lite(num_classes: int, input_shape: ImageShape, width: int, norm: Callable[[int], nn.Module]) -> nn.Module:
    """ViT-Lite-7/4: patches of 4 x 4 pixels, seven blocks of four heads, a class token and a trained position embedding.

    A block normalises before its attention and before its MLP, whose hidden layer is twice as wide. Weights are those that timm
    draws: truncated normal, standard deviation 0.02.

    ``width`` is the size of a token, a multiple of 4 up to 1024 (else ``ModelError``); 0: 256, as published. ``norm`` is unused: a
    transformer has LayerNorm. H and W are multiples of 4, else ``ImageSizeError``.

    Source: Hassani et al. 2021, Escaping the Big Data Paradigm with Compact Transformers, section 3.2; its dropout of attention and
    of whole blocks is left out.
    """
    del norm
    channels, height, side = input_shape
    if width % HEADS or not 0 <= width <= MOST:
        raise ModelError(f"width is {width}; vit_lite takes multiples of {HEADS} up to {MOST}, or 0 for its default")
    if height % PATCH or side % PATCH:
        fits = -(-max(height, side) // PATCH) * PATCH
        raise ImageSizeError(
            f"vit_lite cuts images into patches of {PATCH}x{PATCH}, which do not cover {height}x{side}; the next square size that "
            f"fits is {fits}x{fits}"
        )
    # timm takes seconds to import, which only who builds a transformer need wait for.
    from timm.models.vision_transformer import VisionTransformer

    model: nn.Module = VisionTransformer(
        img_size=(height, side),
        patch_size=PATCH,
        in_chans=channels,
        num_classes=num_classes,
        embed_dim=width or 256,
        depth=7,
        num_heads=HEADS,
        mlp_ratio=2.0,
    )
    return without_in_place(model)
