"""Commands that run an experiment again: with its settings and other seeds."""

from __future__ import annotations

import shlex
import tomllib
from collections.abc import Mapping
from functools import cache
from typing import Any

from clients.data.datasets import is_table
from simulations.experiment.experiment import all_settings
from simulations.experiment.scenario import scenarios
from simulations.settings.defaults import DEFAULT_AUDIT, DEFAULT_CLIENTS
from simulations.settings.plain import usual_values
from simulations.settings.presets import presets

ITS_OWN = {"seed", "output-dir", "resume", "attack-gpus"}
"""Settings of one run alone: a command names them in another way, or the machine decides them."""


def settings_in(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The settings in the content of a ``config.json``; empty where it has none."""
    found = config.get("config")
    return found if isinstance(found, Mapping) else {}


def command_of(config: Mapping[str, Any], seeds: str, out: str, **changed: object) -> str:
    """A command line that runs an experiment with other seeds.

    Args:
        config: The content of the run's ``config.json``.
        seeds: Such as "0..4".
        out: New folder.
        changed: Settings with other values, written with underscores.
    """
    settings = {**settings_in(config), **{key.replace("_", "-"): value for key, value in changed.items()}}
    preset, base = _presets().get(str(settings.get("experiment")), ([], {}))
    run = config.get("run")
    here = ["--in-process"] if isinstance(run, Mapping) and run.get("in-process") else []
    words = ["fedveil", "run", *preset, *here]
    kind, tables = scenarios().get(str(settings.get("scenario"))), is_table(str(settings.get("dataset")))
    usual = usual_values(kind.settings, base, tables) if kind else {}
    audit = {} if preset else DEFAULT_AUDIT
    base = {"num-clients": DEFAULT_CLIENTS, **usual, **audit, **base}
    for key, spec in all_settings().items():
        value = settings.get(key)
        if key not in ITS_OWN and isinstance(value, str | int | float) and value != base.get(key, spec.default):
            words += ["-s", f"{key}={str(value).lower() if isinstance(value, bool) else value}"]
    return shlex.join([*words, "--seeds", seeds, "--out", out])


@cache
def _presets() -> dict[str, tuple[list[str], Mapping[str, Any]]]:
    """Name of an experiment -> words and settings of the preset that gives this name."""
    found = dict[str, tuple[list[str], Mapping[str, Any]]]()
    for name, path in presets().items():
        values = tomllib.loads(path.read_text(encoding="utf-8"))
        paper = values.pop("paper", {})
        for size, of_size in (([], values), (["--size", "paper"], values | paper)):
            if "experiment" in of_size:
                found.setdefault(of_size["experiment"], (["--preset", name, *size], of_size))
    return found
