"""What config.json says of a run, and whether another experiment may go on with it."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from simulations.errors import ConfigError
from simulations.experiment import Experiment
from strategies.audit.adaptive import adaptive_names

PACKAGES = ("fedveil", "flwr", "ray", "torch", "torchvision", "opacus", "numpy")
FREE_ON_RESUME = {"resume", "output-dir", "attack-workers", "attack-gpus", "client-timeout", "min-usable"}
"""Settings that change no number, so a resumed run may differ in them."""


def check_same(experiment: Experiment, before: Mapping[str, Any]) -> None:
    """Whether a run may be resumed with the settings of ``experiment``.

    Raises:
        ConfigError: Naming the first setting that is another than before and may not be.
    """
    now = experiment.to_mapping()
    odd = [key for key in now if key not in FREE_ON_RESUME and before.get(key) != now[key]]
    if odd:
        raise ConfigError(
            f"resume: {odd[0]} was {before.get(odd[0])!r} and is now {now[odd[0]]!r}; resume with the settings of the run"
        )


def about_run(experiment: Experiment, path: Path, progress: Mapping[str, Any]) -> dict[str, Any]:
    """The resolved experiment, versions of the packages that matter, and how far the run in ``path`` is."""
    pipelines = experiment.pipelines()
    described = {
        str(p): {
            "adaptive_attacks": adaptive_names(p, experiment.kinds, experiment.on_tables),
            "sources": [d.source for d in p.defenses],
            "caveats": [d.caveat for d in p.defenses if d.caveat],
        }
        for p in pipelines
    }
    return {
        "config": experiment.to_mapping(),
        "pipelines": [str(p) for p in pipelines],
        "defenses": described,
        "versions": versions(),
        "progress": dict(progress),
        "command": f"fedveil report {path}",
    }


def versions() -> dict[str, str]:
    """Of the packages that matter, as far as they are installed."""
    return {name: v for name in PACKAGES if (v := _version(name))}


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""
