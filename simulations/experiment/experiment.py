"""The experiment: the settings of all scenarios with default, meaning and range, read from a Flower run config."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import Field, dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any

from attacks.base import Attack
from attacks.registry import ATTACKS
from clients.data.card import DataCard
from clients.data.datasets import is_table
from clients.data.partitions import parse_partition
from clients.task.auxiliary import OWN_AUXILIARY
from clients.task.scenarios import client_side, client_sides
from clients.task.task import Plan
from defenses.pipeline import Pipeline
from defenses.registry import RegistryError
from defenses.spec import parse_pipelines
from simulations.experiment.data_rules import check_data
from simulations.experiment.known_names import require_dataset
from simulations.experiment.scenario import scenario, scenarios
from simulations.settings.common import CommonSettings
from simulations.settings.defaults import AUTO, FEDERATED
from simulations.settings.errors import ConfigError, naming
from simulations.settings.fields import (
    check_values,
    key_of,
)
from simulations.settings.plain import refuse_keys
from strategies.audit.adaptive import adaptive_attacks
from strategies.audit.kinds import Kind

Value = bool | int | float | str
NO_DEFENSE = Pipeline()


@dataclass(frozen=True)
class Experiment(CommonSettings):
    """The settings that all scenarios read; each adds its own in a subclass (``Scenario.settings``), which ``of`` finds.

    In TOML files and on the command line names are written with hyphens, as ``batch-size``.

    Raises:
        ConfigError: On any value that cannot be run.
    """

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
        with naming("partition"):
            _ = self.owns_data or parse_partition(self.partition)
        # Read here, so that texts that cannot be read end before any work.
        _ = self.pipelines, self.attacks, self.attacked_rounds
        check_data(self, self.pipelines, self.attacks)
        self.check()
        for pipeline in self.pipelines:
            if missing := [name for name in pipeline.adaptive_attacks if name not in ATTACKS]:
                raise ConfigError(
                    f"defenses: {pipeline} names {missing[0]} as an attack that knows it, and there is none of that name; install "
                    "the package that offers it, or take the name out of adaptive_attacks"
                )
            if pipeline.once and self.plan(pipeline).augments:
                raise ConfigError(
                    f"defenses: {pipeline} protects an image once and keeps the result, but crop-padding = {self.crop_padding} "
                    f"and horizontal-flip = {self.horizontal_flip} show training another view at every use, which would be "
                    "protected anew each time, and the server could average: leave one of the two out"
                )

    def check(self) -> None:
        """Raise ``ConfigError`` for settings that the scenario does not read, or that contradict each other in it."""

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
        """The experiment of a scenario (``scenario``; federated, if none is named) with these settings; see ``from_mapping``."""
        return cls.from_mapping({key_of(name): value for name, value in values.items()})

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> Experiment:
        """Reads hyphenated keys. Settings of other scenarios may be among them as long as they have their defaults.

        What is not among them, or is "auto" there, has the scenario's usual value (``CommonSettings.usual``), or its default.
        A plain `flwr run` gives every setting that the app's file names: there those that some scenario has a usual value of are
        "auto".

        Raises:
            ConfigError: On unknown keys, with the nearest known one, and on bad values.
        """
        name = values.get("scenario", FEDERATED)
        settings = scenario(name).settings
        free = {key for one in scenarios().values() for key in (*one.settings.usual, *one.settings.usual_on_tables)}
        values = {key: value for key, value in values.items() if value != AUTO or key not in free}
        on_tables = settings.usual_on_tables if is_table(str(values.get("dataset"))) else {}
        values = {**settings.usual, **on_tables, **values}
        all_settings()
        refuse_keys(values, name, {one.name: one.settings for one in scenarios().values()})
        own = {key_of(spec.name): spec.name for spec in fields(settings)}
        experiment: Experiment = settings(**{own[key]: value for key, value in values.items() if key in own})
        return experiment

    def to_mapping(self) -> dict[str, Value]:
        """Hyphenated key -> value, all settings of its scenario."""
        return {key_of(spec.name): getattr(self, spec.name) for spec in fields(self)}

    @cached_property
    def pipelines(self) -> tuple[Pipeline, ...]:
        """The pipelines of ``defenses``, no defence first; each stands in the order in which a client runs it."""
        with naming("defenses"):
            found = tuple(parse_pipelines(self.defenses))
            for pipeline in found:
                pipeline.require_order()
        return found

    @cached_property
    def attacks(self) -> dict[Kind, list[Attack[Any, Any]]]:
        """Kind of observation -> attacks that its setting names; on attributes "auto" means those that are usual there."""
        return {kind: self._read_attacks(kind) for kind in self.kinds}

    def _read_attacks(self, kind: Kind) -> list[Attack[Any, Any]]:
        text = str(getattr(self, kind.setting.replace("-", "_")))
        with naming(kind.setting):
            return kind.usual(self.dataset) if kind.of_attributes and text == AUTO else kind.parse(text, self.kinds)

    def check_images(self, shape: tuple[int, int, int]) -> None:
        """Raise ``ConfigError`` for defences that are not meant for images (C, H, W)."""
        if why := next(filter(None, (pipeline.unfit(*shape) for pipeline in self.pipelines)), ""):
            raise ConfigError(f"defenses: {why}")

    def attacks_on(self, pipeline: Pipeline, kind: Kind) -> list[Attack[Any, Any]]:
        """The attacks on one kind of observation of a pipeline, the adaptive ones last; none of what the scenario does not show."""
        if kind not in self.kinds:
            return []
        chosen = self.attacks[kind]
        wanted = self.adaptive and chosen
        added = adaptive_attacks(pipeline, self.pipelines, chosen, kind, self.on_tables) if wanted else []
        return list({repr(attack): attack for attack in [*chosen, *added]}.values())

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """What the scenario lets a server observe."""
        return scenario(self.scenario).kinds

    @property
    def owns_data(self) -> bool:
        """Whether each node trains on data of its own."""
        return self.partition == "node"

    def plan(self, pipeline: Pipeline = NO_DEFENSE, card: DataCard | None = None) -> Plan:
        """What the run fixes for the clients of a pipeline, whose data are as a card says.

        Every field of the plan that the experiment has too, under the same name, is taken from it.
        """
        kind = client_side(self.scenario).plan
        values = {spec.name: getattr(self, spec.name) for spec in fields(kind) if hasattr(self, spec.name)}
        return kind(**values, pipeline=str(pipeline), card=card)


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
