"""What is for images alone and is refused where examples are rows of a table, and the other way round."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from attacks.base import Attack
from attacks.registry import ATTACKS
from attacks.spec import stages_of
from clients.data.datasets import is_table
from clients.task.auxiliary import OWN_AUXILIARY
from defenses.base import EdgeTrainingDefense, InputDefense, SmashedDefense
from defenses.pipeline import Pipeline
from simulations.experiment.scenario import scenario, scenarios
from simulations.settings.fields import key_of
from strategies.audit.adaptive import reads
from strategies.audit.kinds import Kind

ON_IMAGES = ("image_size", "crop_padding", "horizontal_flip")
"""Settings of images alone."""


def why_no_table(values: Mapping[str, Any], pipelines: Sequence[Pipeline]) -> str:
    """Why an experiment cannot run on its data set, a table; "" where it can.

    Args:
        values: Hyphenated key -> value, all of its settings.
        pipelines: The defences.
    """
    dataset, name = values["dataset"], values["scenario"]
    if not scenario(name).reads_tables:
        able = [name for name, one in scenarios().items() if one.reads_tables]
        return (
            f"dataset is {dataset!r}, a table; allowed with scenario = {name!r}: images. Tables go with "
            f"scenario = {' or '.join(map(repr, able))}"
        )
    for key in map(key_of, ON_IMAGES):
        if value := values[key]:
            return f"{key} is {value!r}; allowed with dataset = {dataset!r}, a table: unset"
    if values["auxiliary-data"] not in OWN_AUXILIARY:
        return (
            f"auxiliary-data is {values['auxiliary-data']!r}; allowed with a table: {' or '.join(OWN_AUXILIARY)}, as another data "
            "set has other columns"
        )
    for defense in (defense for pipeline in pipelines for defense in pipeline.defenses):
        pixels = isinstance(defense, SmashedDefense) and (defense.raw_patches or defense.widening > 1)
        if pixels or isinstance(defense, InputDefense | EdgeTrainingDefense):
            return f"defenses: {defense} protects pixels, and dataset = {dataset!r} is a table"
    return ""


def why_not_read(chosen: Mapping[Kind, Sequence[Attack[Any, Any]]], dataset: str) -> str:
    """Why an attack is not for such data: one on images where examples are rows of a table, or the other way round; "" if none.

    Args:
        chosen: Kind of observation -> attacks on it.
        dataset: Name of the data set.
    """
    on_tables = is_table(dataset)
    for kind, attacks in chosen.items():
        for attack in attacks:
            if not reads(stages_of(attack)[0], on_tables):
                what = "a table" if on_tables else "images"
                known = [name for name, cls in ATTACKS.items() if kind.meant(cls()) and reads(cls(), on_tables)]
                return (
                    f"{kind.setting}: {attack} does not attack {what}, which dataset = {dataset!r} is; allowed: "
                    f"{', '.join(sorted(known))}"
                )
    return ""
