"""The client half of T2T-ViT-24 beside that of patch shuffling's repository: what it sends, and what it costs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from released_checkouts import Importer, checkout
from released_rows import Row, close, equal
from released_shuffles import SIDE, Draws
from torch import Tensor

from clients.models.split.halves import EdgeHalf
from clients.models.split.t2t import TOKEN_DIM, PerformerAttention, TokensToToken
from clients.training.step_cost import measure_step
from defenses.smashed.patch_shuffle import PatchShuffle

WIDTH, PATCH, GRID = 512, 16, SIDE // 16
ORDER_SEED = 0
NAMES = {"norm1": "norm1", "norm2": "norm2", "proj": "attention.proj", "mlp.0": "mlp.0", "mlp.2": "mlp.2"}
"""Layers of a released token transformer -> ours."""


def edges(folder: Path) -> Iterator[Row]:
    """What the client half sends for images, its parameters and multiply-accumulates, and its tokens module."""
    images = torch.randn(2, 3, SIDE, SIDE, generator=torch.Generator().manual_seed(0))
    with checkout(folder) as modules:
        torch.manual_seed(0)
        # T2T-ViT-24 but for its depth: the client half has one block.
        whole = modules("models.t2t_vit").T2T_ViT(
            tokens_type="performer", num_classes=2, embed_dim=WIDTH, depth=2, num_heads=8, mlp_ratio=3.0
        )
        whole.eval()
        half = EdgeHalf(
            whole.tokens_to_token, [whole.blocks[0]], whole.cls_token.detach(), grid=(GRID, GRID), patch_size=PATCH, dim=WIDTH
        )  # fmt: skip
        theirs, order = _sent(modules, whole, images)
        with torch.no_grad():
            embedded = half.embed(images)
            ours = half.encode(PatchShuffle().protect_features(embedded, torch.Generator().manual_seed(ORDER_SEED)))
            behind = half.encode(embedded).gather(1, order.unsqueeze(-1).expand_as(embedded))
        own = TokensToToken(
            img_size=(SIDE, SIDE), patch_size=PATCH, in_chans=3, embed_dim=WIDTH, attention=PerformerAttention
        ).eval()
        costs = [
            measure_step(lambda embed=embed: half.encode(embed(images[:1])), [embed, half.blocks], trained=False)
            for embed in (own, half.embedding)
        ]
        apart, undone = (_tokens_apart(whole.tokens_to_token, own, images, scale) for scale in (1.0, TOKEN_DIM**0.25))
    inputs = f"{len(images)} random images of {SIDE} x {SIDE}"
    what = "what the client half of T2T-ViT-24 sends"
    yield close(f"{what}, same permutation", inputs, ours, theirs, 1e-5)
    yield close(f"{what}, ours shuffled behind the block", inputs, behind, theirs, 1e-5)
    yield equal(
        "parameters of the tokens module and one block", "T2T-ViT-24", [(costs[0].parameters, costs[1].parameters)],
        note=f"Ours {costs[0].parameters:,}, released {costs[1].parameters:,}. The repository counts nothing. The paper prints "
        f"3.10 M as multiply-accumulates; our counter finds {costs[1].macs / 1e6:,.0f} M in the released half.",
    )  # fmt: skip
    what = "tokens of the performer module, same weights"
    yield Row(
        what, inputs, f"at most {apart:.2g}", apart <= 1e-5,
        "The released code does not divide queries and keys by the root of their length, so that its random features estimate "
        "another kernel than the softmax.", explained=undone <= 1e-5,
    )  # fmt: skip
    yield Row(f"{what}, our division undone", inputs, f"at most {undone:.2g}", undone <= 1e-5)


def _sent(modules: Importer, whole: Any, images: Tensor) -> tuple[Tensor, Tensor]:
    """What the released client half sends (B, N, D), read where the server's first block gets it, and the order (B, N)."""
    released, seen = modules("model"), list[Tensor]()
    tokens = GRID**2
    order = PatchShuffle().order(len(images), tokens, torch.Generator().manual_seed(ORDER_SEED)) % tokens
    hook = whole.blocks[1].register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].detach()))
    with Draws.of_one_order(order).applied(released.utilsenc), torch.no_grad():
        released.t2t_pretrain(whole, 1).eval()(images)
    hook.remove()
    return seen[0][:, 1:], order


def _tokens_apart(theirs: Any, ours: TokensToToken, images: Tensor, scale: float) -> float:
    """Largest difference of the tokens, with the released weights; those of our queries and keys are multiplied by ``scale``."""
    weights: dict[str, Tensor] = {}
    for part in ("weight", "bias"):
        for at, block in enumerate((theirs.attention1, theirs.attention2)):
            for released, own in NAMES.items():
                weights[f"transformers.{at}.{own}.{part}"] = block.get_submodule(released).get_parameter(part)
            keys, queries, values = block.kqv.get_parameter(part).chunk(3)
            weights[f"transformers.{at}.attention.qkv.{part}"] = torch.cat([scale * queries, scale * keys, values])
            weights[f"transformers.{at}.attention.random_features"] = block.w
        weights[f"project.{part}"] = theirs.project.get_parameter(part)
    ours.load_state_dict(weights)
    with torch.no_grad():
        return float((theirs(images) - ours(images)).abs().max())
