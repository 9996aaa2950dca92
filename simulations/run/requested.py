"""From a file, settings and folders to the requested experiment."""

from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from clients.process.own_code import absolute
from simulations.console.command_line import read_toml, self_contained
from simulations.experiment.experiment import Experiment
from simulations.run_folder.folder_lock import is_there
from simulations.run_folder.run_config import check_same, read_config
from simulations.settings.defaults import DEFAULT_AUDIT, DEFAULT_CLIENTS
from simulations.settings.errors import ConfigError

OF_OTHER_DATA = frozenset({"scenario", "dataset", "num-clients", "train-limit", "partition", "model", "dp-canaries"})
"""Settings with which a run is another audit than the default one."""


def requested(
    config: Path | None,
    settings: Mapping[str, Any],
    out: Path | None = None,
    resume: Path | None = None,
    clients: int | None = None,
    size: str = "",
) -> Experiment:
    """The experiment of a request, whose arguments are those of ``audit``; ``ConfigError`` says what cannot be run.

    ``settings`` (key -> value) override those of the file.
    """
    before: dict[str, Any] = {}
    if resume is not None:
        if not is_there(resume / "config.json", "--resume"):
            raise ConfigError(f"--resume: {resume} holds no run (no config.json)")
        named = {f"CONFIG or --preset ({config})": config, "--out": out, "--clients": clients}
        if too_many := [name for name, value in named.items() if value]:
            raise ConfigError(f"--resume takes the settings of the run itself: leave out {', '.join(too_many)}")
        kept = read_config(resume / "config.json", "--resume")
        before = kept["config"] | {"resume": True, "output-dir": str(resume.resolve())}
        values: dict[str, Any] = {}
    else:
        if clients and settings.get("num-clients", clients) != clients:
            raise ConfigError(f"--clients is {clients}, and num-clients is {settings['num-clients']}; give one of them")
        values = _without_empty_folder(read_toml(config, size) if config else {})
        settings = _without_empty_folder(settings)
        own = values.get("output-dir")
        if out and own is not None and str(own) != str(out.resolve()):
            raise ConfigError(f"--out is {out}, and output-dir of {config} is {own}; give one of them")
        folder = out or Path("runs") / datetime.now().strftime("%Y%m%d-%H%M%S")
        values |= {"output-dir": str(folder.resolve())} if out or "output-dir" not in values else {}
        values |= {"num-clients": clients} if clients else {}
        if config is None and not clients and OF_OTHER_DATA.isdisjoint(settings):
            values |= DEFAULT_AUDIT
    values |= settings
    if resume is None and values.get("resume") is True:
        raise ConfigError(
            "resume is True; allowed: False. `fedveil run --resume DIR` goes on with a run, with the settings it had"
        )
    for key in ("model", "dataset", "auxiliary-data"):
        if isinstance(values.get(key), str):
            values[key] = absolute(values[key])
    if isinstance(values.get("defenses"), str):
        values["defenses"] = self_contained(values["defenses"], "defenses")
    experiment = Experiment.from_mapping(before | values)
    if resume is not None:
        check_same(experiment, kept | {"config": before})
    return experiment if experiment.num_clients else experiment.but(num_clients=DEFAULT_CLIENTS)


def _without_empty_folder(values: Mapping[str, Any]) -> dict[str, Any]:
    """An empty ``output-dir`` is its default, which leaves the folder to us; as a path it would be the one we stand in."""
    return {key: value for key, value in values.items() if (key, value) != ("output-dir", "")}
