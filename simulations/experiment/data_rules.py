"""Names of data sets and models, and settings that do not suit the data: images or tables, one class or several labels."""

from collections.abc import Collection, Mapping, Sequence

from attacks.base import AnyAttack
from attacks.spec import ATTACKS, stages_of
from clients.data.datasets import dataset_names, is_multi_label, is_table, require_name
from clients.models.classifiers import model_names
from clients.process.own_code import is_own
from clients.task.auxiliary import OWN_AUXILIARY
from clients.wire.schema import key_of
from defenses.base import EdgeTrainingDefense, InputDefense, SmashedDefense
from defenses.pipeline import Pipeline
from simulations.experiment.scenario import Scenario
from simulations.settings.errors import ConfigError, naming, require_known
from strategies.audit.adaptive import reads
from strategies.audit.kinds import Kind

ON_IMAGES = ("image_size", "crop_padding", "horizontal_flip")
"""Settings of images alone."""
DEALS_BY_NO_CLASS = ("iid", "node")
"""Partitions that read no class."""
Attacks = Mapping[Kind, Sequence[AnyAttack]]
"""Kind of observation -> attacks on it."""


def require_dataset(key: str, name: str, also: Collection[str] = ()) -> None:
    """Raise ``ConfigError``, with the nearest name, unless the name is a data set, own code, or one of ``also``."""
    known = dataset_names()
    if not is_own(name, known):
        others = [other for other in also if other]
        beside = f"(or {' or '.join(others)})" if others else ""  # which the list of data sets does not have
        require_known(key, name.partition(":")[0], {**dict.fromkeys(also), **known}, beside, listed="datasets")
    if name not in also:
        with naming(key):
            require_name(name)


def require_model(name: str) -> None:
    """Raise ``ConfigError``, with the nearest name, for an unknown model; a name with a colon is tried when it is built."""
    if ":" not in name:
        also = "or a torchvision or timm classifier, such as torchvision:resnet18"
        require_known("model", name, model_names(), also=also, listed="models")


def check_examples(
    settings: Scenario,
    pipelines: Sequence[Pipeline],
    attacks: Attacks,
    scenarios: Mapping[str, type[Scenario]],
) -> None:
    """Raise ``ConfigError`` for a scenario, settings, defences and attacks that are not for the examples of the data set."""

    def able(what: str) -> str:
        return " or ".join(repr(name) for name, scenario in scenarios.items() if getattr(scenario, what))

    if is_table(settings.dataset):
        _check_table(settings, pipelines, able("reads_tables"))
    if is_multi_label(settings.dataset):
        _check_many_labels(settings, attacks, able("takes_many_labels"))
    _check_attacks(settings.dataset, attacks)


def _check_table(settings: Scenario, pipelines: Sequence[Pipeline], able: str) -> None:
    dataset, name = settings.dataset, settings.scenario
    if not settings.reads_tables:
        raise ConfigError(
            f"dataset is {dataset!r}, a table; allowed with scenario = {name!r}: images. Tables go with "
            f"scenario = {able}"
        )
    for field in ON_IMAGES:
        if value := getattr(settings, field):
            raise ConfigError(f"{key_of(field)} is {value!r}; allowed with dataset = {dataset!r}, a table: unset")
    if settings.auxiliary_data not in OWN_AUXILIARY:
        raise ConfigError(
            f"auxiliary-data is {settings.auxiliary_data!r}; allowed with a table: {' or '.join(OWN_AUXILIARY)}, as another data "
            "set has other columns"
        )
    for defense in (defense for pipeline in pipelines for defense in pipeline.defenses):
        pixels = isinstance(defense, SmashedDefense) and defense.widening > 1
        if pixels or isinstance(defense, InputDefense | EdgeTrainingDefense):
            raise ConfigError(f"defenses: {defense} protects pixels, and dataset = {dataset!r} is a table")


def _check_many_labels(settings: Scenario, attacks: Attacks, able: str) -> None:
    dataset, name = settings.dataset, settings.scenario
    if not settings.takes_many_labels:
        raise ConfigError(
            f"dataset is {dataset!r}, whose examples have several labels each; allowed with scenario = {name!r}: one class for an "
            f"example, such as celeba:Smiling. Several labels go with scenario = {able}, as attacks and "
            "scores of the others are of classes"
        )
    if settings.partition not in DEALS_BY_NO_CLASS:
        raise ConfigError(
            f"partition is {settings.partition!r}, which deals out by class; allowed with dataset = {dataset!r}, whose examples "
            f"have several labels each: {' or '.join(DEALS_BY_NO_CLASS)}"
        )
    for kind, chosen in attacks.items():
        if wrong := [attack for attack in chosen if stages_of(attack)[0].profile.needs_classes]:
            raise ConfigError(
                f"{kind.setting}: {wrong[0]} is about the class of an example, and those of dataset = {dataset!r} have several "
                "labels each; leave it out"
            )


def _check_attacks(dataset: str, attacks: Attacks) -> None:
    """Refuse attacks on images where examples are rows of a table, and the other way round."""
    on_tables = is_table(dataset)
    for kind, chosen in attacks.items():
        for attack in chosen:
            if not reads(stages_of(attack)[0], on_tables):
                what = "a table" if on_tables else "images"
                known = [name for name, cls in ATTACKS.items() if kind.meant(cls()) and reads(cls(), on_tables)]
                raise ConfigError(
                    f"{kind.setting}: {attack} does not attack {what}, which dataset = {dataset!r} is; allowed: "
                    f"{', '.join(sorted(known))}"
                )
