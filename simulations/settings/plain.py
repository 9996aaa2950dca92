"""Checks of settings by name, type and range, without importing torch, so that errors appear at once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import Field, fields
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from pkgutil import iter_modules
from typing import Any

from simulations.settings.common import CHOSEN_HERE, CommonSettings
from simulations.settings.defaults import AUTO, FEDERATED, SCENARIOS_GROUP
from simulations.settings.errors import ConfigError, require_known, unknown_scenario
from simulations.settings.fields import checked, key_of, shown

_BESIDE = (info.name for info in iter_modules([str(Path(__file__).parent)]) if f"{__package__}.{info.name}" != __name__)
SETTINGS: Mapping[str, type[CommonSettings]] = {
    name: module.SETTINGS for name in _BESIDE if hasattr(module := import_module(f"{__package__}.{name}"), "SETTINGS")
}
"""Scenario -> its settings, from the module of the same name. A test compares them with the scenarios, which import torch."""

USUAL = {key for kind in SETTINGS.values() for key in (*kind.usual, *kind.usual_on_tables)} | {CHOSEN_HERE}
"""Keys whose value may be "auto": some scenario has its own default, or the machine decides."""


def fields_of(settings: Mapping[str, type[Any]]) -> dict[str, Field[Any]]:
    """Key -> field, of all given settings (scenario -> class)."""
    return {key_of(spec.name): spec for kind in settings.values() for spec in fields(kind)}


def others_declare() -> bool:
    """Whether another package offers a scenario, whose settings are unknown until it is imported."""
    return bool(entry_points(group=SCENARIOS_GROUP))


def refuse_plain(values: Mapping[str, Any], *, resumed: bool = False) -> None:
    """Raise ``ConfigError``, as ``Experiment`` would, for unknown keys, wrong types or ranges, and other scenarios' settings.

    If other packages offer scenarios, this function checks only types and ranges of our own settings, and ``Experiment`` the rest.
    With ``resumed``, the values override those of a stored run, which name the scenario.
    """
    known, values = (
        fields_of(SETTINGS),
        {key: value for key, value in values.items() if key not in USUAL or value != AUTO},
    )
    if not others_declare():
        for key in values:
            require_known("setting", key, known, listed="settings")
    for key, value in values.items():
        if key in known:
            checked(known[key], value)
    if not resumed and not others_declare():
        refuse_keys(values, values.get("scenario", FEDERATED), SETTINGS)


def refuse_keys(values: Mapping[str, Any], scenario: str, settings: Mapping[str, type[Any]]) -> None:
    """Raise ``ConfigError`` for unknown keys, an unknown scenario, and other scenarios' settings with values but their defaults.

    ``settings`` maps each scenario's name to its settings.
    """
    if scenario not in settings:
        raise unknown_scenario(scenario, settings)
    known, own = fields_of(settings), fields_of({scenario: settings[scenario]})
    for key, value in values.items():
        require_known("setting", key, known, listed="settings")
        if key not in own and value != known[key].default:
            owners = [name for name, kind in settings.items() if key in fields_of({name: kind})]
            raise ConfigError(
                f"{key} is {shown(value)}; it is a setting of {' and '.join(owners)}, and scenario is {scenario!r}: leave it out"
            )
