"""What needs one class for each example, and is refused where examples have several labels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from attacks.base import Attack
from attacks.spec import stages_of
from simulations.experiment.scenario import scenario, scenarios
from strategies.audit.kinds import Kind

DEALS_BY_NO_CLASS = ("iid", "node")
"""Partitions that read no class."""


def why_no_vectors(values: Mapping[str, Any], chosen: Mapping[Kind, Sequence[Attack[Any, Any]]]) -> str:
    """Why an experiment cannot run on its data set, whose examples have several labels each; "" where it can.

    Args:
        values: Hyphenated key -> value, all of its settings.
        chosen: Kind of observation -> attacks on it.
    """
    dataset, name, partition = values["dataset"], values["scenario"], values["partition"]
    if not scenario(name).takes_many_labels:
        able = [name for name, one in scenarios().items() if one.takes_many_labels]
        return (
            f"dataset is {dataset!r}, whose examples have several labels each; allowed with scenario = {name!r}: one class for an "
            f"example, such as celeba:Smiling. Several labels go with scenario = {' or '.join(map(repr, able))}, as attacks and "
            "scores of the others are of classes"
        )
    if partition not in DEALS_BY_NO_CLASS:
        return (
            f"partition is {partition!r}, which deals out by class; allowed with dataset = {dataset!r}, whose examples have "
            f"several labels each: {' or '.join(DEALS_BY_NO_CLASS)}"
        )
    for kind, attacks in chosen.items():
        if wrong := [attack for attack in attacks if stages_of(attack)[0].needs_classes]:
            return (
                f"{kind.setting}: {wrong[0]} is about the class of an example, and those of dataset = {dataset!r} have several "
                "labels each; leave it out"
            )
    return ""
