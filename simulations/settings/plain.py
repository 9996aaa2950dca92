"""Settings by scenario, read without importing torch, so that errors appear at once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from importlib.metadata import entry_points
from typing import Any, TypeVar

from clients.wire.schema import fields_of
from clients.wire.texts import shown
from simulations.settings.common import CHOSEN_HERE, REPLACES, CommonSettings
from simulations.settings.defaults import AUTO, FEDERATED, SCENARIOS_GROUP
from simulations.settings.errors import ConfigError, require_known, unknown_scenario

S = TypeVar("S", bound=CommonSettings)


def others_declare() -> bool:
    """Whether another package offers a scenario, whose settings are unknown until it is imported."""
    return bool(entry_points(group=SCENARIOS_GROUP))


def read(values: Mapping[str, Any], settings: Mapping[str, type[S]], tables: bool = False) -> S:
    """The settings of the scenario that hyphenated ``values`` name; other scenarios' may be present with their defaults.

    A missing key, or the value "auto", means the scenario's own default (``CommonSettings.usual``), or the common default. The
    own default of a setting that a given one replaces (``REPLACES``) does not apply.

    Args:
        values: Key -> value.
        settings: Scenario -> its settings.
        tables: The data set's examples are rows of a table.

    Raises:
        ConfigError: For unknown keys, with the nearest known key, for other scenarios' settings, and for bad values.
    """
    known, kinds = fields_of(*settings.values()), settings.values()
    free = {CHOSEN_HERE, *REPLACES}.union(*(kind.usual for kind in kinds), *(kind.usual_on_tables for kind in kinds))
    values = {key: value for key, value in values.items() if value != AUTO or key not in free}
    name = values.get("scenario", FEDERATED)
    if not isinstance(name, str):
        CommonSettings(scenario=name)
    if name not in settings:
        raise unknown_scenario(name, settings)
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
    usual = usual_values(own, values, tables)
    return own(**{key: value for key, value in {**usual, **values}.items() if key in mine})


def usual_values(own: type[CommonSettings], given: Iterable[str], tables: bool) -> dict[str, Any]:
    """A scenario's own defaults, without those of settings that one of the ``given`` replaces (``REPLACES``)."""
    usual = {**own.usual, **own.usual_on_tables} if tables else own.usual
    replaced = {REPLACES.get(key) for key in given}
    return {key: value for key, value in usual.items() if key not in replaced}
