"""Refusing plain values at once: what needs no more than a setting's type and range is told before torch is imported."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import Field, fields
from typing import Any

from simulations.declared.common import CommonSettings
from simulations.declared.federated import FederatedSettings
from simulations.declared.outsourced import OutsourcedSettings
from simulations.declared.split import SplitSettings
from simulations.declared.whole_models import WholeModelSettings
from simulations.settings import checked, key_of

DECLARED = (CommonSettings, WholeModelSettings, FederatedSettings, SplitSettings, OutsourcedSettings)


def plain_settings() -> dict[str, Field[Any]]:
    """Key -> field of the settings that are declared without torch: not those that name networks, nor those of other packages."""
    return {key_of(spec.name): spec for kind in DECLARED for spec in fields(kind)}


def refuse_plain(values: Mapping[str, Any]) -> None:
    """Refuses values of another type, or outside their range, of the settings that it knows.

    Raises:
        ConfigError: As ``Experiment`` would tell it.
    """
    known = plain_settings()
    for key, value in values.items():
        if key in known:
            checked(known[key], value)
