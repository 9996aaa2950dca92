"""Settings of each scenario, besides those that all scenarios read."""

import math
import re
from collections.abc import Mapping
from functools import cached_property
from typing import Annotated, Any, ClassVar, Literal

from clients.wire.schema import setting
from clients.wire.texts import shown
from defenses.checks import (
    LEAST_RATE,
    MOST_RATE,
    Architecture,
    Blocks,
    BlocksOrNone,
    Canaries,
    Examples,
    Limit,
    Optimizer,
    Pixels,
    ProbeMode,
    Rounds,
    Share,
    Steps,
)
from simulations.settings.common import CommonSettings
from simulations.settings.defaults import AUTO
from simulations.settings.errors import ConfigError

WEIGHTS: Any = setting(
    "",
    "initial weights; empty: random weights. inference: efficientnet-lite0 (ImageNet's; install fedveil[pretrained]), or the "
    "absolute path of a file at the server (a state dict by torch.save, .safetensors, or a checkpoint of such a run). If their "
    "last layer has the data's number of classes, the model is not trained: set rounds = 1. Otherwise the last layer starts "
    "from random weights, and all layers are trained. split, vit: absolute path of a file, the same on every machine (a state "
    "dict of timm by torch.save, or .safetensors). Set width, depth, patch-size and heads to the file's (heads cannot be "
    "checked)",
)
BATCHES_PER_MESSAGE: Any = setting(
    4, "batches per message (K); in split learning with 1, a trained client half is updated after each batch"
)
"""Settings of several scenarios."""

DEFAULT_MILESTONES = "5/8,7/8"
"""The rate falls late in a run, so that the final accuracy depends less on the noise of the last steps."""


class WholeModelSettings(CommonSettings):
    """Names, defaults, meanings and ranges of the settings of training whole models."""

    learning_rate_milestones: str = setting(
        DEFAULT_MILESTONES,
        "rounds after which learning-rate is divided by 10 (MultiStepLR with rounds as epochs), separated by "
        "commas: numbers, or shares of rounds such as 5/8 (ignored if no round fits); empty: constant rate",
    )

    @cached_property
    def milestones(self) -> tuple[int, ...]:
        """Rounds after which the learning rate falls, ascending."""
        return milestones_of(self.learning_rate_milestones, self.rounds)


def milestones_of(text: str, rounds: int) -> tuple[int, ...]:
    """Rounds in a text such as ``learning-rate-milestones``, ascending; ``ConfigError`` for a word that is no round."""
    milestones = {_milestone(word.strip(), rounds) for word in text.split(",") if word.strip()}
    # A share of few rounds may be all of them, or none; two shares may be the same round.
    return tuple(sorted(at for at in milestones if 0 < at < rounds))


def _milestone(word: str, rounds: int) -> int:
    part, slash, whole = (piece.strip() for piece in word.partition("/"))
    if part.isdecimal() and whole.isdecimal() and 0 < int(part) < int(whole):
        return math.floor(rounds * int(part) / int(whole) + 0.5)
    if slash or not part.isdecimal() or not 1 <= int(part) < rounds:
        raise ConfigError(
            f"learning-rate-milestones: {word!r}; allowed: numbers from 1 to {rounds - 1}, as rounds = {rounds}, "
            "and shares such as 5/8"
        )
    return int(part)


SIZE = r"0*[1-9][0-9]{0,8}"
"""Pattern of a number of clients, of at most 9 digits: Python refuses to parse numbers of thousands of digits."""


class FederatedSettings(WholeModelSettings):
    """Names, defaults, meanings and ranges of the settings of federated learning."""

    # FedAvg's 2NN, and rounds so short that an exact attack solves whole updates of the first one.
    usual: ClassVar[Mapping[str, Any]] = {
        "dataset": "mnist-5k",
        "model": "mlp",
        "rounds": 30,
        "local-steps": 4,
        "batch-size": 4,
        "learning-rate": 0.1,
        "momentum": 0.5,
    }

    probe_attacks: str = setting(
        AUTO,
        "attacks on one-step probes, separated by ;; auto: every attack that applies to network and update, exact ones first",
    )
    update_attacks: str = setting(AUTO, "attacks on real training updates, separated by ;; auto: as for probes")
    active_attacks: str = setting(
        "",
        "attacks that send clients a manipulated model in place of the agreed model, separated by ;. They need an active server; "
        "the report shows them separately and leaves them out of its summary",
    )
    dp_canaries: Canaries = setting(
        0,
        "canaries among each client's training examples under DP-SGD: examples whose gradients an auditor chooses. Under ClientDP "
        "and FlowerLocalDP: clients whose updates an auditor chooses. From all updates the run bounds epsilon from below. Canaries "
        "cost accuracy; 0: none",
    )
    model_check: bool = setting(
        False,
        "simulated clients check for signs of a manipulated model and refuse it; a deployed node decides by its own key",
    )
    aggregate_clients: str = setting(
        "",
        "group sizes for attacks on sums of clients' one-step probes, as under secure aggregation, such as 1,2,4; empty: no sums",
    )
    aggregate_attacks: str = setting("", "attacks on these sums, separated by ;")
    probe_mode: ProbeMode = setting(
        "train",
        "mode of the model in probes. In eval mode BatchNorm uses its running statistics and dropout is off, as in most papers on "
        "gradient inversion; training steps never send such a gradient",
    )

    @cached_property
    def group_sizes(self) -> tuple[int, ...]:
        """The sizes of ``aggregate-clients``, in their order; ``ConfigError`` for a text that is no list of them."""
        text = self.aggregate_clients
        words = [word.strip() for word in text.split(",")] if text.strip() else []
        sizes = tuple(int(word) for word in words if re.fullmatch(SIZE, word))
        if len(set(sizes)) < len(words) or sizes == (1,):
            raise ConfigError(
                f"aggregate-clients is {shown(text)}; allowed: whole numbers of at least 1, each once, separated by commas, "
                "such as 1,2,4, and not 1 alone: the sum of one client is its plain probe, which probe-attacks attack"
            )
        return sizes

    def check_groups(self, clients: int) -> None:
        """Raise ``ConfigError`` for sums without attacks, attacks without sums, and groups above ``clients`` (0: unknown)."""
        text, attacks = self.aggregate_clients, self.aggregate_attacks.strip()
        if self.group_sizes and not attacks:
            raise ConfigError(
                f"aggregate-clients is {text!r}, and aggregate-attacks is empty: name attacks on the sums, such as "
                "InvertingGradients()"
            )
        if attacks and not self.group_sizes:
            raise ConfigError(
                f"aggregate-attacks is {attacks!r}, and aggregate-clients is empty: set the group sizes of the sums, such as 1,2,4"
            )
        if clients and (too_large := [size for size in self.group_sizes if size > clients]):
            raise ConfigError(
                f"aggregate-clients is {text!r}, and {too_large[0]} is more than all clients; allowed: at most {clients}"
            )


Normalisation = Literal["", "data", "imagenet", "efficientnet-lite0"]
"""With the keys of ``clients.models.packaged_weights.NORMALISATIONS``, repeated because that module imports torch."""


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
    weights: str = WEIGHTS
    normalisation: Normalisation = setting(
        "",
        "mean and standard deviation of the images' normalisation: data (the data set's), imagenet (torchvision's weights), "
        "efficientnet-lite0; empty: those of named weights, otherwise the data set's. A checkpoint needs the value of its own run",
    )
    query_attacks: str = setting("QueryInversion()", "attacks on queries, separated by ;")
    attribute_attacks: str = setting(
        AUTO,
        "attacks that infer a sensitive attribute from queries, separated by ;; auto: a static and a retrained adversary if the "
        "data set has such an attribute; otherwise none",
    )
    offline_adversary: Architecture = setting(
        "split",
        "architecture of the adversary against which a defence is trained: the server half with new weights (split), the server "
        "half starting from its own weights (tuned), or a whole network (full)",
    )
    offline_iterations: Steps = setting(1000, "training steps of this adversary, each on 32 of the server's images")
    batches_per_message: Examples = BATCHES_PER_MESSAGE


class OutsourcedSettings(WholeModelSettings):
    """Names, defaults, meanings and ranges of the settings of outsourced training."""

    usual: ClassVar[Mapping[str, Any]] = {
        "defenses": "VisualMixer(window_lower=2, window_upper=16); ATS(policies='3-1-7+43-18-18')"
    }

    upload_attacks: str = setting(
        "AsUploaded()",
        "attacks on uploaded images, separated by ;, each followed by refinements after |, and on all uploads of a client at once, "
        "such as JointEncodingInversion(). With adaptive, refinements that know a defence are run after AsUploaded()",
    )
    upload_passes: Rounds = setting(
        1,
        "number of times that a client uploads each image; defences such as InstaHide draw anew each time",
    )
    model_attacks: str = setting("LossThreshold()", "attacks on the model that the server trained, separated by ;")
    batches_per_message: Examples = BATCHES_PER_MESSAGE


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
    weights: str = WEIGHTS
    block_learning_rate: Annotated[float, Limit(LEAST_RATE, MOST_RATE, also=0)] = setting(
        0.0,
        "learning rate of transformer blocks in both halves; 0: learning-rate. Otherwise learning-rate applies only to the head",
    )
    learning_rate_floor: Share = setting(
        0.004,
        "last round's learning rates divided by the first round's; rates fall along a cosine",
    )
    optimizer: Optimizer = setting("sgd", "optimizer of both halves")
    batches_per_message: Examples = BATCHES_PER_MESSAGE
    smashed_attacks: str = setting("TokenDecoder(); FeatureInversion()", "attacks on smashed data, separated by ;")


SETTINGS: Mapping[str, type[CommonSettings]] = {
    "federated": FederatedSettings,
    "inference": InferenceSettings,
    "outsourced": OutsourcedSettings,
    "split": SplitSettings,
}
"""Scenario -> its settings. A test compares them with the scenarios, which import torch."""
