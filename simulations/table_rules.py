"""What is for images alone, and is refused where examples are rows of a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from clients.auxiliary import OWN_AUXILIARY
from defenses.base import EdgeTrainingDefense, InputDefense, SmashedDefense
from defenses.pipeline import Pipeline
from simulations.scenarios.base import scenario, scenarios
from simulations.settings import key_of

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
