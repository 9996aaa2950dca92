"""The settings that all scenarios read, and how those of a scenario are read, without torch: errors appear at once."""

import os
from collections.abc import Mapping
from functools import cached_property
from importlib.metadata import entry_points
from typing import Annotated, Any, ClassVar, TypeVar

from clients.wire.rungs import Rung, Sizes, read_rungs
from clients.wire.schema import Settings, fields_of, setting
from clients.wire.texts import shown
from defenses.checks import (
    BelowOne,
    Count,
    Decay,
    Examples,
    Gibibytes,
    Limit,
    Norm,
    OneLine,
    Padding,
    Rate,
    Rounds,
    Share,
    Side,
    Steps,
    StepsOrNone,
    WidthOrNone,
)
from simulations.settings.defaults import AUTO, FEDERATED, SCENARIOS_GROUP
from simulations.settings.errors import ConfigError, require_known

DEFAULT_DEFENSES = "; ".join(
    (
        "VisualMixer(window_lower=2, window_upper=16, first_regions='nearest')",
        "ATS(policies='42-28-42+14-48-48')",  # searched by its authors on Fashion-MNIST
        "GaussianNoise(std=0.01, per='step')",
        "DPSGD(target_epsilon=8.0)",
    )
)
REPLACES = {"local-epochs": "local-steps"}
"""Setting -> another one, of which a scenario's own default does not apply where this one is set."""

CHOSEN_HERE, CHOSEN_SHARE = "attack-gpus", -1.0
"""The setting that the machine decides where its value is "auto", and the number that stands for this."""


class CommonSettings(Settings):
    """Names, defaults, meanings and ranges of the settings that all scenarios read.

    Attributes:
        usual: Key -> the scenario's own default, for settings whose common default does not suit the scenario.
        usual_on_tables: Key -> the scenario's own default for data sets of tables; overrides ``usual``.
    """

    refused: ClassVar[type[ValueError]] = ConfigError
    usual: ClassVar[Mapping[str, Any]] = {}
    usual_on_tables: ClassVar[Mapping[str, Any]] = {}

    experiment: Annotated[str, OneLine(200)] = setting("default", "name of the experiment, written into every row")
    scenario: str = setting(
        FEDERATED, "kind of cooperation between clients and server; `fedveil list scenarios` lists them"
    )
    output_dir: str = setting(
        "", "absolute path of the folder for rows.jsonl, pictures and report.html; empty: a new one in ~/fedveil-runs"
    )
    resume: bool = setting(False, "continue the run in output-dir from its last complete round")
    seed: Count = setting(0, "seed of all random streams of the run")

    dataset: str = setting("photos", "data set; `fedveil list datasets` describes them")
    data_dir: str = setting("", "folder of the data set's files, for data sets read from files")
    download: bool = setting(False, "let torchvision download a missing data set")
    image_size: Side = setting(0, "side in pixels to which images are resized; 0: no resizing")
    train_limit: Count = setting(0, "largest number of training examples; 0: all")
    test_limit: Count = setting(0, "largest number of test examples; 0: all")
    image_memory: Gibibytes = setting(
        1.0,
        "GiB of images that a process may hold in memory. The limit applies to the bytes of a data set's training or test part, to "
        "the floats of a client's share after defences that act once, and to the server's examples. Larger data are read, decoded "
        "and protected batch by batch, with the same results; only the server's examples must fit (auxiliary-limit)",
    )
    partition: str = setting(
        "iid",
        "division of the training examples among clients: iid, dirichlet(alpha=0.5), shards(num_shards_per_partition=2), or "
        "node: each node's own data",
    )
    num_clients: Count = setting(0, "number of clients to wait for; 0: all connected clients, at least two")

    model: str = setting("cnn", "model; `fedveil list models` describes them")
    width: WidthOrNone = setting(0, "width of the model; 0: the model's default width")
    norm: Norm = setting("group", "kind of normalisation layers")

    defenses: str = setting(
        DEFAULT_DEFENSES,
        "pipelines of defences: | joins stages, ; separates pipelines; the pipeline without a defence always runs first",
    )
    rounds: Rounds = setting(16, "training rounds of each pipeline")
    local_epochs: Steps = setting(6, "passes of a client over its data in a round")
    local_steps: StepsOrNone = setting(
        0,
        "optimizer steps of a client in a round, in place of local-epochs; 0: local-epochs applies",
    )
    batch_size: Examples = setting(16, "examples per local step")
    learning_rate: Rate = setting(0.01, "learning rate of local SGD")
    momentum: BelowOne = setting(0.9, "momentum of local SGD")
    nesterov: bool = setting(False, "use Nesterov momentum in local SGD; needs a momentum above 0")
    weight_decay: Decay = setting(0.0, "L2 coefficient of local SGD")
    crop_padding: Padding = setting(
        0,
        "train on random crops of images padded with this many black pixels on each side; 0: no crops. Crops are drawn anew for "
        "each batch, before all input defences, which protect each crop anew. Probes use crops, too",
    )
    horizontal_flip: bool = setting(False, "mirror each training image with probability 1/2, drawn anew like crops")
    min_usable: Share = setting(0.5, "least share of clients with a usable reply; the run stops below it")
    client_timeout: Annotated[float, Limit(0.001, 1e6)] = setting(
        300.0, "seconds that the server waits for a client's reply to a message"
    )

    attack_rounds: str = setting(
        "first,final",
        "rounds that are attacked, separated by commas: numbers, first, last, final or all; empty: none. A round's attacks use the "
        "model at its start and the messages of the round; final attacks the model after the last round",
    )
    adaptive: bool = setting(True, "also run the adaptive attacks, which know the pipeline's defences")
    auxiliary_fraction: BelowOne = setting(
        0.2,
        "share of the training examples held out for the server's attacks that learn; no client gets these examples",
    )
    auxiliary_data: str = setting(
        "held-out",
        "source of the server's examples: held-out (auxiliary-fraction of the training examples), private (the clients' own "
        "examples, the worst case; split only, where test images are attacked), or the name of another data set (split only)",
    )
    auxiliary_limit: Count = setting(0, "largest number of the server's examples; 0: all")
    probe_targets: Examples = setting(
        4,
        "number of observations per client that the audit attacks: one-step updates, or batches of sent data",
    )
    probe_images: Sizes = setting(
        1, "images in each of these observations; with scenario = federated also a ladder of probes of several sizes"
    )
    labels: str = setting(
        "",
        "holder of the labels. federated: unknown or known (whether clients publish the classes of probed images); split: server "
        "or client (a client sends labels with its tokens); outsourced: uploaded; inference: unknown; empty: the first of these",
    )
    attack_workers: Annotated[int, Limit(0, 1024)] = setting(
        2, "number of attacks that run in parallel during training; 0: attacks run between rounds"
    )
    attack_gpus: Annotated[float, Limit(0, 1024, also=CHOSEN_SHARE, word=AUTO)] = setting(
        CHOSEN_SHARE,
        "share of a GPU for each attack worker; auto (-1): what the clients of `fedveil run` leave of the GPUs of this machine",
    )
    share_images: bool = setting(True, "clients send pictures of attacked images for the report")

    @cached_property
    def rungs(self) -> tuple[Rung, ...]:
        """The sizes of ``probe-images``, in order; one but in federated learning."""
        return read_rungs(self.probe_images, self.probe_targets)

    @cached_property
    def attacked_rounds(self) -> tuple[int, ...]:
        """Attacked rounds, ascending; ``rounds + 1`` is the model after the last round. ``ConfigError`` for an unknown word."""
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

    @property
    def attackers(self) -> int:
        """Attack workers of the run; 0 where nothing is attacked, and where attacks run between rounds."""
        return self.attack_workers if self.attacked_rounds else 0


SHARE, MACHINES = "FEDVEIL_ATTACK_SHARE", "FEDVEIL_MACHINES"
"""Variables of what ``fedveil run`` chose, in the environment of the server, since a resumed run may have other machines."""


def environment_of(share: float, machines: str) -> dict[str, str]:
    """Variables of a server whose attack workers get this share of a graphics card, on machines of this description."""
    return {SHARE: repr(share), MACHINES: machines}


def attack_share(setting: float) -> float:
    """Share of a graphics card for each attack worker: the setting, or of "auto" what was chosen; 0 where nothing was."""
    return float(os.environ.get(SHARE, 0.0)) if setting == CHOSEN_SHARE else setting


def machines() -> str:
    """The machines of the run and the shares of their graphics cards, in words; "" where nothing was chosen."""
    return os.environ.get(MACHINES, "")


S = TypeVar("S", bound=CommonSettings)


def others_declare() -> bool:
    """Whether another package offers a scenario, whose settings are unknown until it is imported."""
    return bool(entry_points(group=SCENARIOS_GROUP))


def read(values: Mapping[str, Any], settings: Mapping[str, type[S]], tables: bool = False) -> S:
    """The settings of the scenario that hyphenated ``values`` name; other scenarios' may be present with their defaults.

    A missing key, or the value "auto", means the scenario's own default (``CommonSettings.usual``), or the common default. The
    own default of a setting that a given one replaces (``REPLACES``) does not apply. ``tables``: the data set's examples are rows
    of a table. ``ConfigError`` refuses unknown keys, with the nearest known key, other scenarios' settings, and bad values.
    """
    known, kinds = fields_of(*settings.values()), settings.values()
    free = {CHOSEN_HERE, *REPLACES}.union(*(kind.usual for kind in kinds), *(kind.usual_on_tables for kind in kinds))
    values = {key: value for key, value in values.items() if value != AUTO or key not in free}
    name = values.get("scenario", FEDERATED)
    if not isinstance(name, str):
        CommonSettings(scenario=name)
    if name not in settings:
        raise ConfigError(f"scenario is {name[:200]!r}; allowed: {' or '.join(map(repr, settings))}")
    own = settings[name]
    mine = fields_of(own)
    for key, value in values.items():
        require_known("setting", key, known, listed="settings")
        usual_value = known[key].default
        if key not in mine and (type(value), value) != (type(usual_value), usual_value):
            owners = [other for other, kind in settings.items() if key in fields_of(kind)]
            raise ConfigError(
                f"{key} is {shown(value)}; it is a setting of {' and '.join(owners)}, and scenario is {name!r}: leave it out"
            )
    usual, replaced = {**own.usual, **(own.usual_on_tables if tables else {})}, {REPLACES.get(key) for key in values}
    given = {key: value for key, value in usual.items() if key not in replaced} | values
    return own(**{key: value for key, value in given.items() if key in mine})
