"""Refusing plain values at once: what needs no more than names, types and ranges is told before torch is imported."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import Field, fields
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from pkgutil import iter_modules
from typing import Any

from simulations.settings.common import CommonSettings
from simulations.settings.defaults import AUTO, FEDERATED, SCENARIOS_GROUP
from simulations.settings.errors import other_scenario, require_known, unknown_scenario
from simulations.settings.fields import checked, key_of, shown

_BESIDE = (info.name for info in iter_modules([str(Path(__file__).parent)]) if f"{__package__}.{info.name}" != __name__)
SETTINGS: Mapping[str, type[CommonSettings]] = {
    name: module.SETTINGS for name in _BESIDE if hasattr(module := import_module(f"{__package__}.{name}"), "SETTINGS")
}
"""Scenario -> its settings, in the file of its name. A test compares them with the scenarios themselves, which need torch."""

USUAL = {key for kind in SETTINGS.values() for key in (*kind.usual, *kind.usual_on_tables)}
"""Keys whose value may be "auto": a scenario has one of its own."""


def plain_settings() -> dict[str, Field[Any]]:
    """Key -> field of the settings of our own scenarios."""
    return {key_of(spec.name): spec for kind in SETTINGS.values() for spec in fields(kind)}


def others_declare() -> bool:
    """Whether another package offers a scenario, whose settings nobody here knows."""
    return bool(entry_points(group=SCENARIOS_GROUP))


def refuse_plain(values: Mapping[str, Any], *, resumed: bool = False) -> None:
    """Refuses unknown keys and scenarios, values of another type or outside their range, and settings of another scenario.

    Where other packages offer scenarios, only types and ranges of our own settings are checked here: ``Experiment`` tells the rest.

    Args:
        values: Key -> value, as given.
        resumed: They go on top of a run's own, which say the scenario.

    Raises:
        ConfigError: As ``Experiment`` would tell it.
    """
    known = plain_settings()
    odd = [key for key in values if key not in known]
    if odd and not others_declare():
        require_known("setting", odd[0], known)
    for key, value in values.items():
        if key in known and not (key in USUAL and value == AUTO):
            checked(known[key], value)
    if not resumed:
        _refuse_others(values, known)


def _refuse_others(values: Mapping[str, Any], known: Mapping[str, Field[Any]]) -> None:
    name = values.get("scenario", FEDERATED)
    if name not in SETTINGS:
        if not others_declare():
            raise unknown_scenario(name, SETTINGS)
        return
    own = {key_of(spec.name) for spec in fields(SETTINGS[name])}
    odd = [
        key for key, value in values.items() if key in known.keys() - own and value not in (known[key].default, AUTO)
    ]
    if odd and not others_declare():
        of = [one for one, kind in SETTINGS.items() if any(key_of(spec.name) == odd[0] for spec in fields(kind))]
        raise other_scenario(odd[0], shown(values[odd[0]]), of, name)
