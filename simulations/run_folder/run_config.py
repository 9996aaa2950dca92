"""Content of a run's config.json, and the check that another experiment may resume the run."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from clients.data.datasets import dataset_names
from clients.data.own import GROUP as DATASETS
from clients.models.library import LIBRARIES
from clients.models.own import GROUP as MODELS
from clients.process.own_code import fingerprint, installed, is_own
from simulations.run_folder.study import RunStudy
from simulations.settings.defaults import FEDERATED
from simulations.settings.errors import ConfigError
from strategies.audit.adaptive import adaptive_names

PACKAGES = ("fedveil", "flwr", "ray", "torch", "torchvision", "opacus", "numpy")
OWN_CODE = "own-code"
"""Key of what the files amount to that settings name."""
IN_PROCESS = "in-process"
"""Key, beside the start and machine of a run, of whether its clients work in one process."""
OTHERS = {"audited": "the audit of an app", "recording": "attacks on a recording"}
"""Scenario in a ``config.json`` -> what else leaves a folder like a run's."""
FREE_ON_RESUME = {"resume", "output-dir", "attack-workers", "attack-gpus", "client-timeout", "min-usable"}
"""Settings that change no number, so a resumed run may differ in them."""


def read_config(path: Path, key: str) -> dict[str, Any]:
    """The content of a run's config.json, which the option ``key`` needs.

    Raises:
        ConfigError: When it is none, or cannot be read.
    """
    try:
        kept: dict[str, Any] = {OWN_CODE: {}, "progress": {}} | json.loads(path.read_text(encoding="utf-8"))
        for name in ("config", OWN_CODE, "progress"):
            if not isinstance(kept.get(name), dict):
                raise TypeError(f"{name} is a {type(kept.get(name)).__name__}")
    except OSError as error:
        raise ConfigError(f"{key}: cannot read {path}: {error.strerror}") from error
    except (ValueError, TypeError, RecursionError) as error:
        raise ConfigError(f"{key}: {path} is no configuration of a run: {error}") from error
    if (kind := str(kept["config"].get("scenario", FEDERATED))) in OTHERS:  # a damaged file may hold a list there
        raise ConfigError(
            f"{key}: {path.parent} holds {OTHERS[kind]}, which is begun anew; runs of `fedveil run` can go on"
        )
    return kept


def began_in_process(kept: Mapping[str, Any]) -> bool:
    """Whether the run, whose config.json is ``kept``, has its clients in one process, without Flower's runtime."""
    run = kept.get("run")
    return isinstance(run, Mapping) and run.get(IN_PROCESS) is True


def check_same(experiment: RunStudy, kept: Mapping[str, Any]) -> None:
    """Refuse to resume a run, whose config.json is ``kept``, with other settings or other code.

    Raises:
        ConfigError: Naming the first such setting.
    """
    now, before = experiment.to_mapping(), kept["config"]
    odd = [key for key in now if key not in FREE_ON_RESUME and before.get(key) != now[key]]
    if odd:
        raise ConfigError(
            f"resume: {odd[0]} was {before.get(odd[0])!r} and is now {now[odd[0]]!r}; resume with the settings of the run"
        )
    for key, digest in own_code_of(experiment).items():
        if kept.get(OWN_CODE, {}).get(key, digest) != digest:
            raise ConfigError(f"resume: the file of {key} = {now[key]!r} is not what it was when the run began")


def own_code_of(experiment: RunStudy) -> dict[str, str]:
    """Setting -> fingerprint of its file's content, for settings that name own code."""
    named = {
        "model": (experiment.model, MODELS, LIBRARIES),
        "dataset": (experiment.dataset, DATASETS, dataset_names()),
        "auxiliary-data": (experiment.auxiliary_data, DATASETS, dataset_names()),
    }
    found = {
        key: fingerprint(name, group)
        for key, (name, group, known) in named.items()
        if is_own(name, known) or name in installed(group)
    }
    return {key: digest for key, digest in found.items() if digest}


def about_run(
    experiment: RunStudy, path: Path, progress: Mapping[str, Any], image_size: tuple[int, int] | None = None
) -> dict[str, Any]:
    """The resolved experiment, versions of the packages that matter, and how far the run in ``path`` is.

    With the height and width of the images, it says what the defences' settings in pixels mean on them.
    """
    pipelines = experiment.pipelines
    described = {
        str(p): {
            "adaptive_attacks": adaptive_names(p, experiment.kinds, experiment.on_tables),
            "sources": [d.source for d in p.defenses],
            "caveats": [text for d in p.defenses for text in (d.caveat, d.no_defense) if text],
            "at_size": p.at_size(*image_size) if image_size else [],
        }
        for p in pipelines
    }
    return {
        "config": experiment.to_mapping(),
        "pipelines": [str(p) for p in pipelines],
        "defenses": described,
        OWN_CODE: own_code_of(experiment),
        "versions": versions(),
        "progress": dict(progress),
        "command": f"fedveil report {path}",
    }


def versions() -> dict[str, str]:
    """Package -> its version, of those that are installed."""
    found = {}
    for package in PACKAGES:
        with suppress(PackageNotFoundError):
            found[package] = version(package)
    return found
