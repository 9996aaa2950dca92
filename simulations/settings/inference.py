"""Settings of edge-cloud inference."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from clients.wire.limits import Count, Images, Steps
from clients.wire.schema import setting
from simulations.settings.common import attribute_attacks, batches_per_message, weights
from simulations.settings.whole_models import WholeModelSettings

Normalisation = Literal["", "data", "imagenet", "efficientnet-lite0"]
"""With the keys of ``clients.models.packaged_weights.NORMALISATIONS``, repeated because that module imports torch."""
Architecture = Literal["split", "tuned", "full"]
"""Architectures of an adversary (``attacks.attributes.inference``), repeated for the same reason."""


class InferenceSettings(WholeModelSettings):
    """Names, defaults, meanings and ranges of the settings of edge-cloud inference."""

    usual: ClassVar[Mapping[str, Any]] = {
        "model": "vgg_small",
        "defenses": "FeatureNoise(std=1.0)",
        "probe-targets": 2,
        "probe-images": 4,
    }

    cuts: str = setting(
        "",
        "last layers of the client half, separated by commas, such as conv2,conv4; empty: the model's first cut. Each cut is a "
        "deployment of the same trained model and is audited after the last round; an error lists the model's cuts",
    )
    weights: str = weights()
    normalisation: Normalisation = setting(
        "",
        "mean and standard deviation of the images' normalisation: data (the data set's), imagenet (torchvision's weights), "
        "efficientnet-lite0; empty: those of named weights, otherwise the data set's. A checkpoint needs the value of its own run",
    )
    path_images: Count = setting(
        0,
        "number of the server's images held out to measure a defence's protection and accuracy while it learns; 0: no such curves. "
        "Neither the model nor a defence learns from these images",
    )
    query_attacks: str = setting("QueryInversion()", "attacks on queries, separated by ;")
    attribute_attacks: str = attribute_attacks()
    offline_adversary: Architecture = setting(
        "split",
        "architecture of the adversary against which a defence is trained: the server half with new weights (split), the server "
        "half starting from its own weights (tuned), or a whole network (full)",
    )
    offline_iterations: Steps = setting(1000, "training steps of this adversary, each on 32 of the server's images")
    batches_per_message: Images = batches_per_message()


SETTINGS = InferenceSettings
