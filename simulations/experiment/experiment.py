"""The experiment: the settings of all scenarios with default, meaning and range, read from a Flower run config."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import Field, dataclass, fields
from pathlib import Path
from typing import Any

from attacks.base import Attack
from attacks.registry import ATTACKS
from clients.data.datasets import is_multi_label, is_table
from clients.data.partitions import parse_partition
from clients.task.auxiliary import OWN_AUXILIARY
from clients.task.scenarios import client_side, client_sides
from clients.task.task import Plan
from defenses.base import DefenseError
from defenses.pipeline import Pipeline
from defenses.registry import RegistryError
from defenses.spec import SpecError, parse_pipelines
from simulations.experiment.known_names import require_dataset
from simulations.experiment.label_rules import why_no_vectors
from simulations.experiment.scenario import scenario, scenarios
from simulations.experiment.table_rules import why_no_table, why_not_read
from simulations.settings.common import CommonSettings
from simulations.settings.defaults import AUTO, FEDERATED
from simulations.settings.errors import ConfigError, other_scenario, require_known
from simulations.settings.fields import (
    attacked_rounds,
    check_values,
    key_of,
    shown,
)
from strategies.audit.adaptive import adaptive_attacks
from strategies.audit.kinds import Kind

Value = bool | int | float | str


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

        What is not among them, or is "auto" there, has the scenario's usual value (``Scenario.usual``), or its default. A plain
        `flwr run` gives every setting that the app's file names: there those that some scenario has a usual value of are "auto".

        Raises:
            ConfigError: On unknown keys, with the nearest known one, and on bad values.
        """
        name = values.get("scenario", FEDERATED)
        settings, one = scenario(name).settings, scenario(name)
        free = {key for each in scenarios().values() for key in (*each.usual, *each.usual_on_tables)}
        values = {key: value for key, value in values.items() if value != AUTO or key not in free}
        values = {**one.usual, **(one.usual_on_tables if is_table(str(values.get("dataset"))) else {}), **values}
        own, known = {key_of(spec.name): spec.name for spec in fields(settings)}, all_settings()
        chosen = {}
        for key, value in values.items():
            require_known("setting", key, known)
            if key in own:
                chosen[own[key]] = value
            elif value != known[key].default:
                raise other_scenario(key, shown(value), owners(key), name)
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

    def attacks_at_all(self) -> bool:
        """Whether the rounds that are to be attacked have attacks."""
        return not self.attacked_rounds() or any(map(self.chosen_attacks, self.kinds))

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
