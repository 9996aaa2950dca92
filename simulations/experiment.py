"""The experiment: the settings of all scenarios with default, meaning and range, read from a Flower run config."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import Field, dataclass, fields
from pathlib import Path
from typing import Any

from attacks.base import Attack
from attacks.registry import ATTACKS
from clients.auxiliary import OWN_AUXILIARY
from clients.data.datasets import is_multi_label, is_table
from clients.data.partitions import parse_partition
from clients.scenarios import client_side, client_sides
from clients.task import Plan
from defenses.base import DefenseError
from defenses.pipeline import Pipeline
from defenses.registry import RegistryError
from defenses.spec import SpecError, parse_pipelines
from simulations.errors import ConfigError, require_known
from simulations.known_names import require_dataset
from simulations.label_rules import why_no_vectors
from simulations.scenarios.base import DEFAULT, scenario, scenarios
from simulations.settings import (
    IMAGE_SIDE,
    SHARE,
    above,
    at_least,
    at_most_characters,
    attacked_rounds,
    between,
    check_values,
    key_of,
    one_of,
    setting,
    shown,
)
from simulations.table_rules import why_no_table, why_not_read
from strategies.audit.adaptive import adaptive_attacks
from strategies.audit.kinds import AUTO, Kind

Value = bool | int | float | str

DEFAULT_DEFENSES = "; ".join(
    (
        "VisualMixer(window_lower=2, window_upper=16)",
        "ATS(policies='3-1-7+43-18-18')",  # searched by its authors on CIFAR-100
        "GaussianNoise(std=0.01, per='step')",
        "DPSGD(target_epsilon=8.0)",
    )
)


@dataclass(frozen=True)
class Experiment:
    """The settings that all scenarios read; each adds its own in a subclass (``Scenario.settings``), which ``of`` finds.

    In TOML files and on the command line names are written with hyphens, as ``batch-size``.

    Raises:
        ConfigError: On any value that cannot be run.
    """

    experiment: str = setting("default", "name of the experiment, written into every row", **at_most_characters(200))
    scenario: str = setting(
        DEFAULT, "how clients and server work together; `fedveil list scenarios` says which there are"
    )
    output_dir: str = setting(
        "", "absolute folder for rows.jsonl, pictures and report.html; empty: a new one in ~/fedveil-runs"
    )
    resume: bool = setting(False, "continue the run in output-dir from its last complete round")
    seed: int = setting(0, "every random stream of the run starts from it", **between(0, 2**63 - 1))

    dataset: str = setting("photos", "data set; `fedveil list` describes them")
    data_dir: str = setting("", "folder of data sets that are read from files")
    download: bool = setting(False, "let torchvision download a missing data set")
    image_size: int = setting(0, "side to resize images to; 0: as they are", **IMAGE_SIDE)
    train_limit: int = setting(0, "use at most so many training examples; 0: all", **at_least(0))
    test_limit: int = setting(0, "use at most so many test examples; 0: all", **at_least(0))
    image_memory: float = setting(
        1.0,
        "GiB of images that a process may hold: as bytes of a data set's training or test part, as floats of a client's share "
        "after its once-only defences, and of the server's examples. What is more is read, decoded and protected batch by batch, "
        "with the same results; only the server's examples must fit (auxiliary-limit)",
        **above(0),
    )
    partition: str = setting(
        "iid", "iid, dirichlet(alpha=0.5), shards(num_shards_per_partition=2), or node: each node's own data"
    )
    num_clients: int = setting(0, "clients to wait for; 0: those that are connected, at least two", **at_least(0))

    model: str = setting("cnn", "model; `fedveil list` describes them")
    width: int = setting(0, "width of the model; 0: its usual width", **between(0, 65_536))
    norm: str = setting("group", "normalisation layers", **one_of("group", "batch"))

    defenses: str = setting(
        DEFAULT_DEFENSES, "pipelines: stages joined by |, pipelines separated by ; (no defence always runs first)"
    )
    rounds: int = setting(16, "federated rounds of each pipeline", **between(1, 1_000_000))
    local_epochs: int = setting(6, "passes over the local data in a round", **at_least(1))
    local_steps: int = setting(
        0, "optimizer steps in a round, whatever local-epochs says; 0: as many as local-epochs takes", **at_least(0)
    )
    batch_size: int = setting(16, "examples of a local step", **at_least(1))
    learning_rate: float = setting(0.01, "of local SGD", **above(0))
    momentum: float = setting(0.9, "of local SGD", allowed="from 0, below 1", check=lambda value: 0 <= value < 1)
    nesterov: bool = setting(False, "local SGD looks ahead by its momentum (Nesterov); needs a momentum above 0")
    weight_decay: float = setting(0.0, "L2 coefficient of local SGD", **at_least(0))
    crop_padding: int = setting(
        0,
        "local training sees random crops of images padded with so many black pixels on all sides, drawn anew for every batch and "
        "before all input defences, which then protect every view anew; 0: no crops. Probes see them, too",
        **at_least(0),
    )
    horizontal_flip: bool = setting(False, "local training also sees mirror images, with probability 1/2, like crops")
    min_usable: float = setting(0.5, "share of the asked clients that must answer usably, or the run stops", **SHARE)
    client_timeout: float = setting(300.0, "seconds a client may take for one message", **above(0))

    attack_rounds: str = setting(
        "first,final",
        "what is attacked, separated by commas: numbers of rounds, first and last (the model that the round begins with, and "
        "what the round sends), final (the model after the last round; no training follows), or all; empty: nothing",
    )
    adaptive: bool = setting(True, "also run the attacks that know the pipeline's defences")
    auxiliary_fraction: float = setting(
        0.2,
        "share of the training examples that the server holds for attacks that learn; no client gets them",
        allowed="from 0, below 1",
        check=lambda value: 0 <= value < 1,
    )
    auxiliary_data: str = setting(
        "held-out",
        "where the server's examples come from: held-out (auxiliary-fraction of the training examples), private (the clients' "
        "own: the worst case; split only, attacks test images), or the name of another data set (split only)",
    )
    auxiliary_limit: int = setting(0, "use at most so many of the server's examples; 0: all", **at_least(0))
    probe_targets: int = setting(
        4,
        "observations of chosen images that the audit takes of each client: one-step updates, or batches of sent data",
        **at_least(1),
    )
    probe_images: int = setting(1, "attacked images in each of them", **at_least(1))
    labels: str = setting(
        "",
        "federated: unknown or known, whether clients publish the classes of probed images; split: server or client, who holds "
        "them (a client sends them with its tokens); outsourced: uploaded; inference: unknown; empty: the first of these",
    )
    attack_workers: int = setting(
        2, "attacks that run at the same time, beside training; 0: between rounds", **between(0, 1024)
    )
    attack_gpus: float = setting(0.0, "share of a GPU for each of them", **at_least(0))
    share_images: bool = setting(True, "clients send pictures of probed images for the report")

    def __post_init__(self) -> None:
        check_values(self)
        if self.scenario not in client_sides():
            raise ConfigError(
                f"scenario is {self.scenario!r}, of which clients know nothing: its package must offer their side, too "
                "(entry points fedveil.clients)"
            )
        if type(self) is not (wanted := scenario(self.scenario).settings):
            raise ConfigError(f"the settings of scenario {self.scenario!r} are a {wanted.__name__}: use Experiment.of")
        require_dataset("dataset", self.dataset)
        allowed = scenario(self.scenario).labels
        if self.labels and self.labels not in allowed:
            raise ConfigError(
                f"labels is {self.labels!r}; allowed with scenario = {self.scenario!r}: {' or '.join(map(repr, allowed))}"
            )
        if self.auxiliary_data not in OWN_AUXILIARY:
            require_dataset("auxiliary-data", self.auxiliary_data, also=OWN_AUXILIARY)
        if self.nesterov and not self.momentum:
            raise ConfigError(
                "nesterov is True; allowed with momentum = 0: False, as there is nothing to look ahead by"
            )
        if self.output_dir and not Path(self.output_dir).is_absolute():
            raise ConfigError(
                f"output-dir is {self.output_dir!r}; expected an absolute path, because the server's folder is not yours"
            )
        if self.resume and not self.output_dir:
            raise ConfigError("resume needs output-dir, the folder of the run to continue")
        readers: list[tuple[str, Callable[[], object]]] = [
            ("partition", lambda: self.partition == "node" or parse_partition(self.partition)),
            ("defenses", self.pipelines),
            *((kind.setting, functools.partial(self.chosen_attacks, kind)) for kind in self.kinds),
        ]
        for key, read in readers:
            try:
                read()
            except (SpecError, DefenseError, ValueError) as error:
                raise ConfigError(f"{key}: {error}") from error
        self.attacked_rounds()
        chosen = {kind: self.chosen_attacks(kind) for kind in self.kinds}
        no_table = why_no_table(self.to_mapping(), self.pipelines()) if self.on_tables else ""
        no_vectors = why_no_vectors(self.to_mapping(), chosen) if is_multi_label(self.dataset) else ""
        if why := no_table or no_vectors or why_not_read(chosen, self.dataset):
            raise ConfigError(why)
        scenario(self.scenario).check(self)
        for pipeline in self.pipelines():
            if missing := [name for name in pipeline.adaptive_attacks if name not in ATTACKS]:
                raise ConfigError(
                    f"defenses: {pipeline} names {missing[0]} as an attack that knows it, and there is none of that name; install "
                    "the package that offers it, or take the name out of adaptive_attacks"
                )
            if pipeline.protects_once and self.plan(pipeline).augments:
                raise ConfigError(
                    f"defenses: {pipeline} protects an image once and keeps the result, but crop-padding = {self.crop_padding} "
                    f"and horizontal-flip = {self.horizontal_flip} show training another view at every use, which would be "
                    "protected anew each time, and the server could average: leave one of the two out"
                )

    @property
    def on_tables(self) -> bool:
        """Whether the data set's examples are rows of a table, not images."""
        return is_table(self.dataset)

    @property
    def who_holds_labels(self) -> str:
        """The value of ``labels``, or the scenario's usual one."""
        return self.labels or scenario(self.scenario).labels[0]

    @classmethod
    def of(cls, **values: Any) -> Experiment:
        """The experiment of a scenario (``scenario``; federated, if none is named) with these settings.

        Raises:
            ConfigError: On any value that cannot be run.
        """
        return cls.from_mapping({key_of(name): value for name, value in values.items()})

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> Experiment:
        """Reads hyphenated keys. Settings of other scenarios may be among them as long as they have their defaults.

        What is not among them has the scenario's usual value (``Scenario.usual``), or its default.

        Raises:
            ConfigError: On unknown keys, with the nearest known one, and on bad values.
        """
        name = values.get("scenario", DEFAULT)
        settings, one = scenario(name).settings, scenario(name)
        values = {**one.usual, **(one.usual_on_tables if is_table(str(values.get("dataset"))) else {}), **values}
        own, known = {key_of(spec.name): spec.name for spec in fields(settings)}, all_settings()
        chosen = {}
        for key, value in values.items():
            require_known("setting", key, known)
            if key in own:
                chosen[own[key]] = value
            elif value != known[key].default:
                raise ConfigError(
                    f"{key} is {shown(value)}; it is a setting of {' and '.join(owners(key))}, and scenario "
                    f"is {name!r}: leave it out"
                )
        experiment: Experiment = settings(**chosen)
        return experiment

    def to_mapping(self) -> dict[str, Value]:
        """Hyphenated key -> value, all settings of its scenario."""
        return {key_of(spec.name): getattr(self, spec.name) for spec in fields(self)}

    def pipelines(self) -> list[Pipeline]:
        """The pipelines, no defence first.

        Raises:
            SpecError: Of the text.
            DefenseError: When a chain is refused, or stands in another order than a client runs it.
        """
        found = parse_pipelines(self.defenses)
        for pipeline in found:
            pipeline.require_order()
        return found

    def check_images(self, shape: tuple[int, int, int]) -> None:
        """Refuses defences that are not meant for images (C, H, W).

        Raises:
            ConfigError: With the reason.
        """
        if why := next(filter(None, (pipeline.unfit(*shape) for pipeline in self.pipelines())), ""):
            raise ConfigError(f"defenses: {why}")

    def attacks_on(self, pipeline: Pipeline, kind: Kind) -> list[Attack[Any, Any]]:
        """The attacks on one kind of observation of a pipeline, the adaptive ones last; none of what the scenario does not show."""
        if kind not in self.kinds:
            return []
        chosen = self.chosen_attacks(kind)
        wanted = self.adaptive and chosen
        added = adaptive_attacks(pipeline, self.pipelines(), chosen, kind, self.on_tables) if wanted else []
        return list({repr(attack): attack for attack in [*chosen, *added]}.values())

    def chosen_attacks(self, kind: Kind) -> list[Attack[Any, Any]]:
        """Those that the setting names (``Kind.setting``); on attributes "auto" means those that are usual there.

        Raises:
            SpecError: Naming what is unknown or not allowed.
            AttackError: When one of them attacks something else.
        """
        text = str(getattr(self, kind.setting.replace("-", "_")))
        if kind.of_attributes and text == AUTO:
            return kind.usual(self.dataset)
        return kind.parse(text, self.kinds)

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """What the scenario lets a server observe."""
        return scenario(self.scenario).kinds

    def attacked_rounds(self) -> list[int]:
        """Numbers of the attacked rounds, in order; ``rounds + 1`` is the model after the last one."""
        return attacked_rounds(self.attack_rounds, self.rounds)

    def plan(self, pipeline: Pipeline) -> Plan:
        """What the run fixes for the clients of a pipeline."""
        kind = client_side(self.scenario).plan
        names = {spec.name for spec in fields(kind)} & {spec.name for spec in fields(self)}
        values = {name: getattr(self, name) for name in names}
        return kind(**values, pipeline=str(pipeline), owns_data=self.partition == "node")


def all_settings() -> dict[str, Field[Any]]:
    """Key -> field, of all scenarios.

    Raises:
        RegistryError: When a scenario of another package gives a setting that others have, too, another default.
    """
    found = {key_of(spec.name): spec for spec in fields(Experiment)}
    for one in scenarios().values():
        for spec in fields(one.settings):
            known = found.setdefault(key_of(spec.name), spec)
            if (type(known.default), known.default) != (type(spec.default), spec.default):
                raise RegistryError(
                    f"scenario {one.name!r}: {key_of(spec.name)} has the default {spec.default!r}, and {known.default!r} elsewhere"
                )
    return found


def owners(key: str) -> list[str]:
    """The scenarios that read a setting."""
    return [one.name for one in scenarios().values() if any(key_of(spec.name) == key for spec in fields(one.settings))]
