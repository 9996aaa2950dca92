"""Settings by scenario, read without importing torch, so that errors appear at once."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import entry_points
from typing import Any, TypeVar

from clients.wire.schema import fields_of
from clients.wire.texts import shown
from simulations.settings.common import CHOSEN_HERE, REPLACES, CommonSettings
from simulations.settings.defaults import AUTO, FEDERATED, SCENARIOS_GROUP
from simulations.settings.errors import ConfigError, require_known

S = TypeVar("S", bound=CommonSettings)


def others_declare() -> bool:
    """Whether another package offers a scenario, whose settings are unknown until it is imported."""
    return bool(entry_points(group=SCENARIOS_GROUP))


def read(values: Mapping[str, Any], settings: Mapping[str, type[S]], tables: bool = False) -> S:
    """The settings of the scenario that hyphenated ``values`` name; other scenarios' may be present with their defaults.

    A missing key, or the value "auto", means the scenario's own default (``CommonSettings.usual``), or the common default. The
    own default of a setting that a given one replaces (``REPLACES``) does not apply. ``tables``: the data set's examples are rows
    of a table. ``ConfigError`` refuses unknown keys, with the nearest known key, other scenarios' settings, and bad values.
    """
    known, kinds = fields_of(*settings.values()), settings.values()
    free = {CHOSEN_HERE, *REPLACES}.union(*(kind.usual for kind in kinds), *(kind.usual_on_tables for kind in kinds))
    values = {key: value for key, value in values.items() if value != AUTO or key not in free}
    name = values.get("scenario", FEDERATED)
    if not isinstance(name, str):
        CommonSettings(scenario=name)
    if name not in settings:
        raise ConfigError(f"scenario is {name[:200]!r}; allowed: {' or '.join(map(repr, settings))}")
    own = settings[name]
    mine = fields_of(own)
    for key, value in values.items():
        require_known("setting", key, known, listed="settings")
        usual_value = known[key].default
        if key not in mine and (type(value), value) != (type(usual_value), usual_value):
            owners = [other for other, kind in settings.items() if key in fields_of(kind)]
            raise ConfigError(
                f"{key} is {shown(value)}; it is a setting of {' and '.join(owners)}, and scenario is {name!r}: leave it out"
            )
    usual, replaced = {**own.usual, **(own.usual_on_tables if tables else {})}, {REPLACES.get(key) for key in values}
    given = {key: value for key, value in usual.items() if key not in replaced} | values
    return own(**{key: value for key, value in given.items() if key in mine})
