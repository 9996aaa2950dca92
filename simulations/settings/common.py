"""The settings that all scenarios read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

from simulations.settings.defaults import AUTO, FEDERATED
from simulations.settings.errors import ConfigError
from simulations.settings.fields import (
    IMAGE_SIDE,
    SHARE,
    at_least,
    at_most_characters,
    between,
    limited,
    one_of,
    setting,
)

DEFAULT_DEFENSES = "; ".join(
    (
        "VisualMixer(window_lower=2, window_upper=16)",
        "ATS(policies='3-1-7+43-18-18')",  # searched by its authors on CIFAR-100
        "GaussianNoise(std=0.01, per='step')",
        "DPSGD(target_epsilon=8.0)",
    )
)


def attribute_attacks() -> Any:
    """The setting ``attribute-attacks`` of several scenarios."""
    return setting(
        AUTO,
        "attacks on the sensitive attribute behind queries (inference), tokens of test images (split) or one-step probes "
        "(federated), separated by ;; auto: with scenario = inference a static and a retrained adversary where the data set has "
        "such an attribute; else none",
    )


def attribute_queries() -> Any:
    """The setting ``attribute-queries`` of several scenarios."""
    about = "of each client, the first ones, whose sensitive attribute is guessed; 0: all of its test images"
    return setting(0, about, **at_least(0))


@dataclass(frozen=True)
class CommonSettings:
    """Their names, defaults, meanings and ranges.

    Attributes:
        usual: Key -> value of a scenario where a configuration sets none, in place of a default that the scenario would refuse.
        usual_on_tables: Likewise where examples are rows of a table; over ``usual``.
    """

    usual: ClassVar[Mapping[str, Any]] = {}
    usual_on_tables: ClassVar[Mapping[str, Any]] = {}

    experiment: str = setting("default", "name of the experiment, written into every row", **at_most_characters(200))
    scenario: str = setting(
        FEDERATED, "how clients and server work together; `fedveil list scenarios` says which there are"
    )
    output_dir: str = setting(
        "", "absolute folder for rows.jsonl, pictures and report.html; empty: a new one in ~/fedveil-runs"
    )
    resume: bool = setting(False, "continue the run in output-dir from its last complete round")
    seed: int = setting(0, "every random stream of the run starts from it", **limited("seed"))

    dataset: str = setting("photos", "data set; `fedveil list` describes them")
    data_dir: str = setting("", "folder of data sets that are read from files")
    download: bool = setting(False, "let torchvision download a missing data set")
    image_size: int = setting(0, "side to resize images to; 0: as they are", **IMAGE_SIDE)
    train_limit: int = setting(0, "use at most so many training examples; 0: all", **limited("train_limit"))
    test_limit: int = setting(0, "use at most so many test examples; 0: all", **limited("test_limit"))
    image_memory: float = setting(
        1.0,
        "GiB of images that a process may hold: as bytes of a data set's training or test part, as floats of a client's share "
        "after its once-only defences, and of the server's examples. What is more is read, decoded and protected batch by batch, "
        "with the same results; only the server's examples must fit (auxiliary-limit)",
        **limited("image_memory"),
    )
    partition: str = setting(
        "iid", "iid, dirichlet(alpha=0.5), shards(num_shards_per_partition=2), or node: each node's own data"
    )
    num_clients: int = setting(0, "clients to wait for; 0: those that are connected, at least two", **at_least(0))

    model: str = setting("cnn", "model; `fedveil list` describes them")
    width: int = setting(0, "width of the model; 0: its usual width", **limited("width"))
    norm: str = setting("group", "normalisation layers", **one_of("group", "batch"))

    defenses: str = setting(
        DEFAULT_DEFENSES, "pipelines: stages joined by |, pipelines separated by ; (no defence always runs first)"
    )
    rounds: int = setting(16, "federated rounds of each pipeline", **limited("rounds"))
    local_epochs: int = setting(6, "passes over the local data in a round", **limited("local_epochs"))
    local_steps: int = setting(
        0,
        "optimizer steps in a round, whatever local-epochs says; 0: as many as local-epochs takes",
        **limited("local_steps"),
    )
    batch_size: int = setting(16, "examples of a local step", **limited("batch_size"))
    learning_rate: float = setting(0.01, "of local SGD", **limited("learning_rate"))
    momentum: float = setting(0.9, "of local SGD", **limited("momentum"))
    nesterov: bool = setting(False, "local SGD looks ahead by its momentum (Nesterov); needs a momentum above 0")
    weight_decay: float = setting(0.0, "L2 coefficient of local SGD", **limited("weight_decay"))
    crop_padding: int = setting(
        0,
        "local training sees random crops of images padded with so many black pixels on all sides, drawn anew for every batch and "
        "before all input defences, which then protect every view anew; 0: no crops. Probes see them, too",
        **limited("crop_padding"),
    )
    horizontal_flip: bool = setting(False, "local training also sees mirror images, with probability 1/2, like crops")
    min_usable: float = setting(0.5, "share of the asked clients that must answer usably, or the run stops", **SHARE)
    client_timeout: float = setting(300.0, "seconds a client may take for one message", **between(0.001, 1e6))

    attack_rounds: str = setting(
        "first,final",
        "what is attacked, separated by commas: numbers of rounds, first and last (the model that the round begins with, and "
        "what the round sends), final (the model after the last round; no training follows), or all; empty: nothing",
    )
    adaptive: bool = setting(True, "also run the attacks that know the pipeline's defences")
    auxiliary_fraction: float = setting(
        0.2,
        "share of the training examples that the server holds for attacks that learn; no client gets them",
        **limited("auxiliary_fraction"),
    )
    auxiliary_data: str = setting(
        "held-out",
        "where the server's examples come from: held-out (auxiliary-fraction of the training examples), private (the clients' "
        "own: the worst case; split only, attacks test images), or the name of another data set (split only)",
    )
    auxiliary_limit: int = setting(
        0, "use at most so many of the server's examples; 0: all", **limited("auxiliary_limit")
    )
    probe_targets: int = setting(
        4,
        "observations of chosen images that the audit takes of each client: one-step updates, or batches of sent data",
        **limited("probe_targets"),
    )
    probe_images: int = setting(1, "attacked images in each of them", **limited("probe_images"))
    labels: str = setting(
        "",
        "federated: unknown or known, whether clients publish the classes of probed images; split: server or client, who holds "
        "them (a client sends them with its tokens); outsourced: uploaded; inference: unknown; empty: the first of these",
    )
    attack_workers: int = setting(
        2, "attacks that run at the same time, beside training; 0: between rounds", **between(0, 1024)
    )
    attack_gpus: float = setting(0.0, "share of a GPU for each of them", **between(0, 1024))
    share_images: bool = setting(True, "clients send pictures of probed images for the report")

    @cached_property
    def attacked_rounds(self) -> tuple[int, ...]:
        """Attacked rounds, in order; ``rounds + 1`` is the model after the last one. ``ConfigError`` for a word that is none."""
        final = self.rounds + 1
        names = {"first": [1], "last": [self.rounds], "final": [final], "all": list(range(1, final + 1))}
        chosen: set[int] = set()
        for word in filter(None, map(str.strip, self.attack_rounds.split(","))):
            numbers = names.get(word) or ([int(word)] if word.isdecimal() and 1 <= int(word) <= self.rounds else [])
            if not numbers:
                raise ConfigError(
                    f"attack-rounds: {word!r}; allowed: first, last, final, all and numbers from 1 to rounds = {self.rounds}"
                )
            chosen.update(numbers)
        return tuple(sorted(chosen))

    @property
    def attacks_final(self) -> bool:
        """Whether the model after the last round is attacked."""
        return self.rounds + 1 in self.attacked_rounds
