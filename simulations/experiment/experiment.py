"""Experiments: checked settings of one run, read from keys and values such as a Flower run config."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Mapping
from dataclasses import fields
from functools import cached_property
from pathlib import Path
from typing import Any

from pydantic.fields import FieldInfo

from attacks.base import AnyAttack
from attacks.choice import Needless
from attacks.spec import ATTACKS
from clients.data.card import DataCard
from clients.data.datasets import is_table
from clients.data.partitions import parse_partition
from clients.task.auxiliary import OWN_AUXILIARY
from clients.task.scenarios import client_side, client_sides
from clients.task.task import Plan
from clients.wire.schema import fields_of, key_of
from defenses.pipeline import Pipeline
from defenses.registry import RegistryError, collected, modules_in
from defenses.spec import parse_pipelines
from simulations.experiment.data_rules import check_examples, require_dataset, require_model
from simulations.experiment.scenario import KnownClients, Scenario
from simulations.settings.common import read
from simulations.settings.defaults import AUTO, SCENARIOS_GROUP
from simulations.settings.errors import ConfigError, naming
from simulations.settings.scenarios import WholeModelSettings
from strategies.audit.adaptive import adaptive_attacks
from strategies.audit.kinds import Kind

NO_DEFENSE = Pipeline()


class Experiment(Scenario):
    """Checked settings of one run; ``Experiment.of`` makes the subclass of the scenario.

    TOML files and the command line write names with hyphens, such as ``batch-size``.

    Raises:
        ConfigError: On any value that cannot be run.
    """

    def check_together(self) -> None:
        """Raise ``ConfigError`` for names that are unknown, and for values that contradict each other."""
        if self.scenario not in client_sides():
            raise ConfigError(
                f"scenario is {self.scenario!r}, and no package offers its client side: offer it as an entry point of the group "
                "fedveil.clients"
            )
        if type(self) is not scenarios().get(self.scenario):
            raise ConfigError(
                f"the settings of scenario {self.scenario!r} are no {type(self).__name__}: use Experiment.of"
            )
        require_dataset("dataset", self.dataset)
        if self.labels and self.labels not in self.label_holders:
            raise self.refusal("labels", " or ".join(map(repr, self.label_holders)))
        if len(self.rungs) > 1 and not self.probes_in_sizes:
            raise self.refusal("probe-images", "one whole number, such as 4")
        if self.auxiliary_data not in OWN_AUXILIARY:
            require_dataset("auxiliary-data", self.auxiliary_data, also=OWN_AUXILIARY)
        if self.nesterov and not self.momentum:
            raise ConfigError("nesterov is True, and momentum is 0; allowed: a momentum above 0, or nesterov = false")
        if self.output_dir and not Path(self.output_dir).is_absolute():
            raise self.refusal("output-dir", "an absolute path, because the server runs in another folder", by="")
        if self.resume and not self.output_dir:
            raise ConfigError("resume needs output-dir, the folder of the run to continue")
        with naming("partition"):
            _ = self.owns_data or parse_partition(self.partition)
        # Parsed here, so that errors in texts end the run before any work.
        _ = self.pipelines, self.attacks, self.attacked_rounds
        check_examples(self, self.pipelines, self.attacks, scenarios())
        self.check()
        self._check_pipelines()

    def _check_pipelines(self) -> None:
        for pipeline in self.pipelines:
            for defense in pipeline.defenses:
                if why := self.unsuited(pipeline, defense):
                    raise ConfigError(f"defenses: {defense} {why}")
            if missing := [name for name in pipeline.adaptive_attacks if name not in ATTACKS]:
                raise ConfigError(
                    f"defenses: {pipeline} names the adaptive attack {missing[0]}, which is unknown; install the package that "
                    "offers the attack, or remove the name from adaptive_attacks"
                )
            if pipeline.once and self.plan(pipeline).augments:
                raise ConfigError(
                    f"defenses: {pipeline} protects an image once and keeps the result, but crop-padding = {self.crop_padding} "
                    f"and horizontal-flip = {self.horizontal_flip} make a new view for each use, which would be protected anew, so "
                    "that the server could average over the views: leave one of the two out"
                )

    def check_clients(self, clients: KnownClients) -> None:
        """Raise ``ConfigError`` for clients that the scenario cannot work with: by default, check data and shares once more."""
        for pipeline in self.pipelines:
            self.check_data(pipeline, clients.card)
        for train, test in clients.sizes.values():
            self.check_share(train, test)

    @property
    def on_tables(self) -> bool:
        """Whether the data set's examples are rows of a table, not images."""
        return is_table(self.dataset)

    @property
    def who_holds_labels(self) -> str:
        """The value of ``labels``, or the scenario's default."""
        return self.labels or self.label_holders[0]

    @classmethod
    def of(cls, **values: Any) -> Experiment:
        """Make the experiment of ``scenario`` (default: federated) with these settings; see ``from_mapping``."""
        return cls.from_mapping({key_of(name): value for name, value in values.items()})

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> Experiment:
        """Make an experiment from hyphenated keys and values; other scenarios' settings may be present with their defaults.

        See ``simulations.settings.common.read``. A plain `flwr run` passes every setting of the app's file, where settings with a
        scenario's own default are "auto".
        """
        all_settings()
        return read(values, scenarios(), tables=is_table(str(values.get("dataset"))))

    @cached_property
    def pipelines(self) -> tuple[Pipeline, ...]:
        """The pipelines of ``defenses``, the empty pipeline first; each is written in the order in which a client runs it."""
        with naming("defenses"):
            pipelines = tuple(parse_pipelines(self.defenses))
            for pipeline in pipelines:
                pipeline.require_order()
        return pipelines

    @cached_property
    def attacks(self) -> dict[Kind, list[AnyAttack]]:
        """Kind of observation -> attacks of its setting; "auto" means the usual ones of that kind."""
        return {kind: self._read_attacks(kind) for kind in self.kinds}

    def _read_attacks(self, kind: Kind) -> list[AnyAttack]:
        with naming(kind.setting):
            return kind.usual(self.dataset) if self.is_auto(kind) else kind.parse(self._text_of(kind), self.kinds)

    def _text_of(self, kind: Kind) -> str:
        return str(getattr(self, kind.setting.replace("-", "_")))

    def is_auto(self, kind: Kind) -> bool:
        """Whether the attacks on a kind of observation are the usual ones."""
        return self._text_of(kind) == AUTO and (kind.of_attributes or bool(kind.usual(self.dataset)))

    def needless(self, pipeline: Pipeline, kind: Kind) -> Needless:
        """What becomes of attacks behind an exact one that has every image; without a defence they are controls."""
        if not self.is_auto(kind) or kind.of_attributes:
            return Needless.RUN
        return Needless.SKIP if pipeline.defenses or len(self.pipelines) == 1 else Needless.SAMPLE

    def check_images(self, shape: tuple[int, int, int]) -> None:
        """Raise ``ConfigError`` for defences that are unsuitable for images (C, H, W)."""
        if why := next(filter(None, (pipeline.unfit(*shape) for pipeline in self.pipelines)), ""):
            raise ConfigError(f"defenses: {why}")

    def idle_defenses(self, height: int, width: int) -> list[str]:
        """Reasons why defences have no effect on images of this size, one clause each, for notices of a run that goes on."""
        return list(dict.fromkeys(why for pipeline in self.pipelines for why in pipeline.idle(height, width)))

    @property
    def all_attacks(self) -> list[str]:
        """All attacks of the run, adaptive ones included, each once."""
        pairs = itertools.product(self.pipelines, self.kinds)
        return list(dict.fromkeys(repr(attack) for pair in pairs for attack in self.attacks_on(*pair)))

    def attacks_on(self, pipeline: Pipeline, kind: Kind) -> list[AnyAttack]:
        """Attacks on one kind of observation of a pipeline, adaptive attacks last; [] if the scenario lacks the kind."""
        if kind not in self.kinds:
            return []
        chosen = self.attacks[kind]
        wanted = self.adaptive and chosen
        in_turn = self.needless(pipeline, kind) is Needless.SKIP
        more = (pipeline, self.pipelines, chosen, kind, self.on_tables)
        added = adaptive_attacks(*more, in_turn=in_turn) if wanted else []
        return list({repr(attack): attack for attack in [*chosen, *added]}.values())

    @property
    def owns_data(self) -> bool:
        """Whether each node trains on its own data."""
        return self.partition == "node"

    def plan(self, pipeline: Pipeline = NO_DEFENSE, card: DataCard | None = None) -> Plan:
        """Make the plan that the server sends to the clients of a pipeline; ``card`` describes the clients' data.

        The plan takes its values from the experiment's fields of the same names.
        """
        kind = client_side(self.scenario).plan
        values = {spec.name: getattr(self, spec.name) for spec in fields(kind) if hasattr(self, spec.name)}
        values["probe_images"] = self.rungs[0].images
        return kind(**values, pipeline=str(pipeline), card=card)


class WholeModelExperiment(WholeModelSettings, Experiment):
    """Settings of such scenarios besides those that all scenarios read."""

    def check_together(self) -> None:
        """As for all experiments, and rounds of ``learning-rate-milestones`` that there are."""
        super().check_together()
        _ = self.milestones

    def check_training_by_server(self, why: str) -> None:
        """Raise ``ConfigError`` for settings of the clients' training, as they train nothing; ``why`` they show no views."""
        if self.local_steps:
            raise self.refusal("local-steps", "0, as the server trains on whole passes")
        if self.crop_padding or self.horizontal_flip:
            raise ConfigError(
                f"crop-padding is {self.crop_padding} and horizontal-flip {self.horizontal_flip}; allowed with "
                f"scenario = {self.scenario!r}: 0 and False, as {why}"
            )

    def check_whole_model(self) -> None:
        """Raise ``ConfigError`` for models that are no whole ones, and for auxiliary data of other kinds."""
        require_model(self.model)
        if self.auxiliary_data != "held-out":
            raise self.refusal("auxiliary-data", "'held-out'")


@functools.cache
def scenarios() -> dict[str, type[Experiment]]:
    """Name -> scenario; ``RegistryError`` for one of another package that cannot be loaded, or whose name is taken."""
    return collected(Experiment, "scenario", SCENARIOS_GROUP, modules_in("simulations.scenarios"), "SCENARIO")


def all_settings() -> dict[str, FieldInfo]:
    """Key -> field, of the settings of all scenarios; ``RegistryError`` where two give a setting different defaults."""
    specs = fields_of(Experiment)
    for scenario in scenarios().values():
        for key, spec in fields_of(scenario).items():
            known = specs.setdefault(key, spec)
            if (type(known.default), known.default) != (type(spec.default), spec.default):
                raise RegistryError(
                    f"scenario {scenario.name!r}: {key} has the default {spec.default!r}; allowed: {known.default!r}, "
                    "as in the other scenarios"
                )
    return specs


def owners(key: str) -> list[str]:
    """The scenarios that read a setting."""
    return [scenario.name for scenario in scenarios().values() if key in fields_of(scenario)]
