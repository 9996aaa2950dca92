"""Settings of split learning."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

from clients.wire.limits import (
    LEAST_RATE,
    MOST_RATE,
    Blocks,
    BlocksOrNone,
    Images,
    Limit,
    Optimizer,
    Pixels,
    Share,
)
from clients.wire.schema import setting
from simulations.settings.common import CommonSettings, attribute_attacks, batches_per_message, weights


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
    weights: str = weights()
    block_learning_rate: Annotated[float, Limit(LEAST_RATE, MOST_RATE, also=0)] = setting(
        0.0,
        "learning rate of transformer blocks in both halves; 0: learning-rate. Otherwise learning-rate applies only to the head",
    )
    learning_rate_floor: Share = setting(
        0.004,
        "last round's learning rates divided by the first round's; rates fall along a cosine",
    )
    optimizer: Optimizer = setting("sgd", "optimizer of both halves")
    batches_per_message: Images = batches_per_message()
    smashed_attacks: str = setting("TokenDecoder(); FeatureInversion()", "attacks on smashed data, separated by ;")
    attribute_attacks: str = attribute_attacks()


SETTINGS = SplitSettings
