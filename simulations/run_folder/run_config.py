"""A run's config.json: settings, start, duration, machine, and the check that another experiment may resume the run."""

from __future__ import annotations

import os
import platform
import shlex
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import psutil
import torch

from clients.data.datasets import dataset_names
from clients.data.own import GROUP as DATASETS
from clients.models.library import LIBRARIES
from clients.models.own import GROUP as MODELS
from clients.process.own_code import fingerprint, installed, is_own
from clients.wire.texts import read_object
from simulations.experiment.experiment import Experiment
from simulations.settings.common import machines
from simulations.settings.errors import ConfigError
from strategies.audit.adaptive import adaptive_names
from strategies.external_app.settings import AppStudy

RunStudy = Experiment | AppStudy
"""The study whose results a run's folder keeps."""
PACKAGES = ("fedveil", "flwr", "ray", "torch", "torchvision", "opacus", "dp-accounting", "numpy")
OWN_CODE = "own-code"
"""Key of what the files amount to that settings name."""
IN_PROCESS = "in-process"
"""Key, beside the start and machine of a run, of whether its clients work in one process."""
FREE_ON_RESUME = {"resume", "output-dir", "attack-workers", "attack-gpus", "client-timeout", "min-usable"}
"""Settings that change no number, so a resumed run may differ in them."""


def read_config(path: Path, key: str) -> dict[str, Any]:
    """The content of a run's config.json, which the option ``key`` needs; ``ConfigError`` when it is none, or cannot be read."""
    try:
        kept: dict[str, Any] = {OWN_CODE: {}, "progress": {}} | read_object(path)
        for name in ("config", OWN_CODE, "progress"):
            if not isinstance(kept.get(name), dict):
                raise TypeError(f"{name} is a {type(kept.get(name)).__name__}")
    except OSError as error:
        raise ConfigError(f"{key}: cannot read {path}: {error.strerror}") from error
    except (ValueError, TypeError, RecursionError) as error:
        raise ConfigError(f"{key}: {path} is no configuration of a run: {error}") from error
    if "resume" not in kept["config"]:  # the audit of an app and attacks on a recording have no such setting
        raise ConfigError(f"{key}: {path.parent} holds an audit that is begun anew; runs of `fedveil run` can go on")
    return kept


def began_in_process(kept: Mapping[str, Any]) -> bool:
    """Whether the run, whose config.json is ``kept``, has its clients in one process, without Flower's runtime."""
    run = kept.get("run")
    return isinstance(run, Mapping) and run.get(IN_PROCESS) is True


def check_same(experiment: RunStudy, kept: Mapping[str, Any]) -> None:
    """Raise ``ConfigError`` to resume a run, whose config.json is ``kept``, with other settings or other code."""
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
    digests = {
        key: fingerprint(name, group)
        for key, (name, group, known) in named.items()
        if is_own(name, known) or name in installed(group)
    }
    return {key: digest for key, digest in digests.items() if digest}


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
    present = {}
    for package in PACKAGES:
        with suppress(PackageNotFoundError):
            present[package] = version(package)
    return present


@dataclass
class RunTimes:
    """The clock of a process that computes a run ``started`` first then (UTC), with the seconds of processes ``before`` it."""

    started: str = field(default_factory=lambda: datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"))
    before: float = 0.0
    _begun: float = field(default_factory=time.perf_counter)

    @classmethod
    def resumed(cls, about: Mapping[str, Any]) -> RunTimes:
        """After what ``about`` wrote."""
        return cls(str(about["started"]), float(about["seconds"]))

    def about(self) -> dict[str, Any]:
        """For config.json: when it started, seconds of computing so far, the machine, and which machines and shares were chosen."""
        seconds = self.before + time.perf_counter() - self._begun
        facts = {"started": self.started, "seconds": round(seconds, 1), "machine": machine()}
        return facts | ({"machines": chosen} if (chosen := machines()) else {})


def machine() -> str:
    """Cores that this process may use, memory, processor and graphics cards, in words."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    cards = [torch.cuda.get_device_name(at) for at in range(torch.cuda.device_count())]
    parts = [f"{cores} {'core' if cores == 1 else 'cores'}", f"{psutil.virtual_memory().total / 2**30:.0f} GiB"]
    return ", ".join([*parts, f"{platform.system()} {platform.machine()}", *cards])


def command_of(folder: object, config: Mapping[str, Any], seeds: str, out: str, *changed: str) -> str:
    """A command line that runs the experiment of a folder with seeds such as "0..4" and ``changed`` settings into ``out``."""
    here = ["--in-process"] if began_in_process(config) else []
    words = [word for setting in changed for word in ("-s", setting)]
    return shlex.join(["fedveil", "run", f"{folder}/config.json", *here, *words, "--seeds", seeds, "--out", out])
