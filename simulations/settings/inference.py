"""Settings of edge-cloud inference."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from clients.wire.limits import MOST_IMAGES, MOST_STEPS
from simulations.settings.common import attribute_attacks, attribute_queries
from simulations.settings.fields import at_least, between, one_of, setting
from simulations.settings.whole_models import WholeModelSettings

STATISTICS = ("imagenet", "efficientnet-lite0")
"""Keys of ``clients.models.packaged_weights.NORMALISATIONS``, which brings torch with it, as does the next one's module."""
ARCHITECTURES = ("split", "tuned", "full")
"""Of an adversary (``attacks.attributes.inference``)."""


@dataclass(frozen=True)
class InferenceSettings(WholeModelSettings):
    """Their names, defaults, meanings and ranges."""

    usual: ClassVar[Mapping[str, Any]] = {
        "model": "vgg_small",
        "defenses": "FeatureNoise(std=1.0)",
        "probe-targets": 2,
        "probe-images": 4,
    }

    cuts: str = setting(
        "",
        "behind which layers the client half ends, separated by commas, such as conv2,conv4: each is a deployment of its own, of "
        "the same trained model, and a phase behind the last round; errors name those there are; empty: the model's first",
    )
    weights: str = setting(
        "",
        "weights of the whole model: efficientnet-lite0 (ImageNet's; install fedveil[pretrained]), or the absolute path of a file "
        "at the server (a state dict by torch.save, .safetensors, or a checkpoint that such a run has left). Where its last layer "
        "has as many classes as the data, nothing is trained: set rounds = 1; else the last layer is new, and all are trained from "
        "there; empty: random weights",
    )
    normalisation: str = setting(
        "",
        "mean and standard deviation by which images are normalised: data (the data set's), imagenet (of torchvision's weights), "
        "efficientnet-lite0; empty: those of named weights, else the data set's. A checkpoint wants what its own run had",
        **one_of("", "data", *STATISTICS),
    )
    path_images: int = setting(
        0,
        "how many of the server's own images are kept to measure curves on, of what a defence is worth while it learns; neither "
        "the model nor a defence learns from them; 0: no curves",
        **at_least(0),
    )
    query_attacks: str = setting("QueryInversion()", "attacks on queries, separated by ;")
    attribute_attacks: str = attribute_attacks()
    attribute_queries: int = attribute_queries()
    offline_adversary: str = setting(
        "split",
        "architecture of the adversary by which a defence learns what to hide: the server half with new weights (split), with its "
        "own as a start (tuned), or a whole network (full)",
        **one_of(*ARCHITECTURES),
    )
    offline_iterations: int = setting(
        1000, "steps of its training, on 32 of the server's images each", **between(1, MOST_STEPS)
    )
    query_batches: int = setting(4, "batches of queries in a message", **between(1, MOST_IMAGES))


SETTINGS = InferenceSettings
