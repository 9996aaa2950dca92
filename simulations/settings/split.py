"""Settings of split learning."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

from clients.wire.limits import (
    LEAST_RATE,
    MOST_RATE,
    Blocks,
    BlocksOrNone,
    Count,
    Images,
    Limit,
    Optimizer,
    Pixels,
    Share,
)
from clients.wire.schema import setting
from simulations.settings.common import CommonSettings, attribute_attacks, attribute_queries


class SplitSettings(CommonSettings):
    """Names, defaults, meanings and ranges of the settings of split learning."""

    usual: ClassVar[Mapping[str, Any]] = {"model": "vit", "defenses": "PatchShuffle(); FeatureNoise(std=1.0)"}
    usual_on_tables: ClassVar[Mapping[str, Any]] = {
        "model": "difm",
        "optimizer": "adamw",
        "learning-rate": 0.003,
        "defenses": "PatchShuffle(); FeatureNoise(std=0.38)",
        "smashed-attacks": "EmbeddingReversal(); FieldReading()",
    }

    patch_size: Pixels = setting(4, "side of a patch in pixels, a divisor of the images' sides")
    depth: Blocks = setting(4, "number of transformer blocks of both halves together")
    heads: Blocks = setting(4, "attention heads per block")
    edge_blocks: BlocksOrNone = setting(
        1, "number of blocks in the client half, unless a defence requires another number"
    )
    train_edge: bool = setting(False, "train and average the client half; otherwise it keeps its initial weights")
    pretrained: str = setting(
        "",
        "vit: absolute path of a file of initial weights, the same file on every machine (a state dict of timm by torch.save, or "
        ".safetensors); empty: random weights. Set width, depth, patch-size and heads to the file's (heads cannot be checked)",
    )
    block_learning_rate: Annotated[float, Limit(LEAST_RATE, MOST_RATE, also=0)] = setting(
        0.0,
        "learning rate of transformer blocks in both halves; 0: learning-rate. Otherwise learning-rate applies only to the head",
    )
    learning_rate_floor: Share = setting(
        0.004,
        "last round's learning rates divided by the first round's; rates fall along a cosine",
    )
    optimizer: Optimizer = setting("sgd", "optimizer of both halves")
    batches_per_message: Images = setting(
        4,
        "batches per message (K); with 1, a trained client half is updated after each batch",
    )
    smashed_attacks: str = setting("TokenDecoder(); FeatureInversion()", "attacks on smashed data, separated by ;")
    attribute_attacks: str = attribute_attacks()
    attribute_queries: Count = attribute_queries()


SETTINGS = SplitSettings
