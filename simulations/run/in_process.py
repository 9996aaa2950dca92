"""A run in the calling process: no daemon, no Ray; for notebooks, debuggers and quick looks."""

from __future__ import annotations

import os
import sys
import threading
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any

from rich.markup import escape

from simulations.console.command_line import errors
from simulations.console.terminal import Terminal
from simulations.experiment.experiment import Experiment
from simulations.forecast.preflight import preflight
from simulations.report.analysis.failures import Failure, failed_attacks
from simulations.report.analysis.run import read_run
from simulations.report.analysis.sentences import sentence
from simulations.report.analysis.summary import summarise
from simulations.report.studies.rows import read_rows
from simulations.run.requested import requested
from simulations.run_folder.rows import Row
from simulations.runtime.flower_log import flower_log
from simulations.runtime.guardian import scratch_folder
from simulations.runtime.launch import end_politely, undisturbed
from simulations.runtime.local_grid import LocalGrid
from simulations.runtime.local_run import conclude, what_next
from simulations.runtime.main_guard import require_guard
from simulations.runtime.progress import STEPS_IN_PROCESS, follow
from simulations.server_app import run_experiment
from simulations.settings.errors import ConfigError
from simulations.settings.presets import chosen, presets


@dataclass(frozen=True)
class Audited:
    """What an experiment left behind in its ``directory``: rows, report, pictures, checkpoints."""

    directory: Path

    @property
    def report(self) -> Path:
        """The page, one file without outer references."""
        return self.directory / "report.html"

    @cached_property
    def rows(self) -> list[Row]:
        """Every number with its threat card, as in ``rows.jsonl``."""
        return read_rows(self.directory / "rows.jsonl")[0]

    @cached_property
    def conclusions(self) -> dict[str, str]:
        """Defence ("" without one) -> the report's sentence about it."""
        return {
            line.defense: sentence(line) for study in read_run(self.directory).studies for line in summarise(study, {})
        }

    @property
    def failures(self) -> Sequence[Failure]:
        """Attacks that gave no score, with the reason."""
        return failed_attacks(self.directory)


def audit(
    config: str | Path | None = None,
    *,
    preset: str = "",
    size: str = "",
    out: str | Path | None = None,
    resume: str | Path | None = None,
    clients: int | None = None,
    cpus_per_client: int = 1,
    **settings: Any,
) -> Audited:
    """Runs an experiment in this process and returns its rows and report: ``audit(dataset="mnist-5k", defenses="DPSGD()")``.

    The same seed gives the same rows as ``fedveil run``. Clients answer one after the other; attacks run beside them in
    ``attack_workers`` processes, so that a script must call this below ``if __name__ == "__main__":``; with
    ``attack_workers=0`` they run in this process as well. What one should know beforehand, such as too few images for a verdict
    or pictures that were left out, comes as a Python warning. What was complete when it is interrupted is kept, and ``resume``
    goes on from there.

    Args:
        config: TOML file of settings.
        preset: Name of a configuration that fedveil brings along, such as "quick", in place of a file.
        size: "paper" for the file's experiment at the size of the paper, where it has one.
        out: New folder for the results; by default ``runs/DATE-TIME``.
        resume: Folder of a run that was broken off.
        clients: Simulated clients; by default as set, else 4.
        cpus_per_client: Threads of torch while a client works.
        settings: Over the file, as ``fedveil list settings`` names them, with underscores for hyphens; ``model`` and ``dataset``
            also as a class or function of a module.

    Raises:
        ConfigError: Before any work, naming the key, what came and what is allowed.
        RuntimeError: When too few clients send something usable, or a script calls this without that guard.
    """
    for name, value in (("clients", clients), ("cpus_per_client", cpus_per_client)):
        if value is not None and (type(value) is not int or value < 1):
            raise ConfigError(f"{name} is {value!r}; allowed: a whole number of at least 1")
    if cpus_per_client > (cores := os.cpu_count() or 1):
        raise ConfigError(f"cpus_per_client is {cpus_per_client}; this machine has {cores}")
    for name, text in (("preset", preset), ("size", size)):
        if not isinstance(text, str):
            raise ConfigError(f"{name} is {text!r}; allowed: a text")
    file, folder, begun = path_or_none("config", config), path_or_none("out", out), path_or_none("resume", resume)
    values = {name.replace("_", "-"): value for name, value in settings.items()}
    values |= {key: place_of(key, values[key]) for key in ("model", "dataset") if callable(values.get(key))}
    if file is not None and not file.is_file() and str(config) in presets():
        raise ConfigError(
            f"config is {str(config)!r}, which is no file; the configuration of that name is preset={str(config)!r}"
        )
    experiment = requested(chosen(file, preset, size), values, folder, begun, clients, size)
    if experiment.attack_workers:
        require_guard("simulations.audit", "attack_workers=0")
    preflight(experiment, lambda line: warnings.warn(line.removeprefix("warning: "), stacklevel=4))
    with scratch_folder():
        run_experiment(LocalGrid(experiment.num_clients, cpus_per_client), experiment)
    return Audited(Path(experiment.output_dir))


def run_in_process(console: Terminal, experiment: Experiment, cpus_per_client: int) -> int:
    """Run an experiment, whose checks are passed, with an output folder here, and say how it ended; the exit code."""
    out, started = Path(experiment.output_dir), time.monotonic()
    end_politely()
    if experiment.attack_workers:
        with undisturbed():  # which it inherits: a terminal that closes would end it before what it is there for
            resource_tracker.ensure_running()
    try:
        with flower_log(out / "flower.log") as begin, _followed(console, experiment, begin), scratch_folder():
            run_experiment(LocalGrid(experiment.num_clients, cpus_per_client), experiment)
    except KeyboardInterrupt:
        errors.say(f"\nstopped; {what_next(out)}")
        return 130
    except ConfigError as error:  # such as a damaged file of a run that was to go on: the same command would not help
        errors.print(f"[red]error:[/red] {escape(str(error))}", soft_wrap=True)
        return 2
    except (RuntimeError, OSError) as error:
        errors.print(f"[red]the run failed[/red]: {escape(f'{type(error).__name__}: {error}')}", soft_wrap=True)
        errors.say(f"log: {out / 'flower.log'}\n{what_next(out)}")
        return 1
    return conclude(console, out, started)


@contextmanager
def _followed(console: Terminal, experiment: Experiment, begin: int) -> Iterator[None]:
    """Shows how far a run is that goes on within; a thread reads what the run writes, as that of a run elsewhere is read."""
    ended = threading.Event()
    shown = threading.Thread(
        target=follow, args=(console, ended.wait, experiment, begin, STEPS_IN_PROCESS), name="progress", daemon=True
    )
    shown.start()
    try:
        yield
    finally:
        ended.set()
        shown.join()


def place_of(key: str, code: Any) -> str:
    """A class or function by its place, as other processes find it: ``package.module:NAME``, or ``FILE.py:NAME`` of the script.

    Raises:
        ConfigError: When they could not, as it stands within another function, or in a notebook.
    """
    module, name = getattr(code, "__module__", ""), getattr(code, "__qualname__", "")
    file = getattr(sys.modules.get(module), "__file__", None)
    if not name.isidentifier() or not file:
        raise ConfigError(
            f"{key} is {code!r}; allowed: a name, or a class or function at the top level of a module or script, where "
            "other processes look for it"
        )
    return f"{Path(file).resolve()}:{name}" if module == "__main__" else f"{module}:{name}"


def path_or_none(name: str, path: Any) -> Path | None:
    """An argument as a path.

    Raises:
        ConfigError: When it is none. Of an empty text, as of a variable that is not set, ``Path`` makes the folder one stands in.
    """
    if path is None:
        return None
    if not isinstance(path, str | os.PathLike) or not str(path) or "\0" in str(path):
        raise ConfigError(f"{name} is {path!r}; allowed: a path")
    return Path(path)
