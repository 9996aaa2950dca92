"""Runs in the calling process, without a daemon or Ray; for notebooks, debuggers and quick checks."""

import functools
import inspect
import logging
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

from PIL.Image import Image
from rich.markup import escape

from defenses.base import DEFENSES
from simulations.compare.compared import compare_runs
from simulations.console.command_line import errors
from simulations.console.terminal import Terminal
from simulations.experiment.experiment import Experiment
from simulations.preflight import preflight
from simulations.report.analysis.failures import Failure, failed_attacks
from simulations.report.analysis.run import read_run
from simulations.report.analysis.sentences import sentence
from simulations.report.notebook import best_pictures
from simulations.report.studies.rows import read_rows
from simulations.run.requested import requested
from simulations.run_folder.rows import Row
from simulations.runtime.guardian import scratch_folder
from simulations.runtime.launch import PACKAGES, Resources, end_politely, undisturbed
from simulations.runtime.local_grid import LocalGrid
from simulations.runtime.local_run import conclude, fail_run, stop_run
from simulations.runtime.main_guard import require_guard
from simulations.runtime.progress import STEPS_IN_PROCESS, follow
from simulations.server_app import run_experiment
from simulations.settings.errors import ConfigError, naming
from simulations.settings.presets import chosen, presets
from strategies.audit import runner


@dataclass(frozen=True)
class Audited:
    """Results of an experiment in its ``directory``: rows, report, pictures, checkpoints. Jupyter shows the outcomes."""

    directory: Path

    @property
    def report(self) -> Path:
        """The report's HTML page, a single file without external references."""
        return self.directory / "report.html"

    @cached_property
    def rows(self) -> list[Row]:
        """All rows of ``rows.jsonl``: every number with its threat card."""
        return read_rows(self.directory / "rows.jsonl")[0]

    @cached_property
    def conclusions(self) -> dict[str, str]:
        """Defence ("" without a defence) -> the report's sentence about it."""
        return {line.defense: sentence(line) for of in read_run(self.directory).summaries for line in of.findings}

    def table(self) -> Any:
        """A ``pandas.DataFrame`` with a line for each defence and message; see ``Compared.table``."""
        return compare_runs(self).table()

    def pictures(self, n: int = 3) -> list[Image]:
        """Up to ``n`` guesses beside their originals, if the run shares images; ``info["title"]`` says what each shows."""
        return best_pictures(self.directory, n)

    def _repr_html_(self) -> str:
        return compare_runs(self)._repr_html_()

    @property
    def failures(self) -> Sequence[Failure]:
        """Attacks without a score, with the reasons."""
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
    """Run an experiment in this process and return its results: ``audit(dataset="mnist-5k", defenses="DPSGD()")``.

    The same seed gives the same rows as ``fedveil run``. Clients run one after the other, and attacks in parallel in
    ``attack_workers`` processes. A script must therefore call this function under ``if __name__ == "__main__":``; with
    ``attack_workers=0`` the attacks run in this process too. Notices, such as too few images for a conclusion or omitted pictures,
    are Python warnings. An interrupted run keeps its complete rounds, and ``resume`` continues from there.

    Args:
        config: TOML file of settings, or the ``config.json`` of a run.
        preset: Name of a configuration that comes with fedveil, such as "quick", in place of a file.
        size: "paper" for the file's experiment at the size of the paper, if it has one.
        out: New folder for the results; default: ``runs/DATE-TIME``.
        resume: Folder of an interrupted run.
        clients: Number of simulated clients; default: the setting ``num_clients``, or 4.
        cpus_per_client: Threads of torch for a client.
        settings: Settings that override the file, named as in ``fedveil list settings`` with underscores for hyphens; ``model`` and
            ``dataset`` may also be a class or function of a module, and ``defenses`` a defence or a list of them. Only this process
            knows a class that the program itself defines, as in a notebook: such a defence needs ``attack_workers=0``.

    Raises:
        ConfigError: Before any work, with the key, the value and the allowed values.
        RuntimeError: When too few clients send usable replies, or a script calls this function without the guard above.
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
    values |= {"defenses": _text_of(values["defenses"])} if "defenses" in values else {}
    if file is not None and not file.is_file() and str(config) in presets():
        raise ConfigError(
            f"config is {str(config)!r}, which is no file; the configuration of that name is preset={str(config)!r}"
        )
    experiment = requested(chosen(file, preset, size), values, folder, begun, clients, size)
    own = {type(stage).__name__ for of in experiment.pipelines for stage in of.defenses} & {*DEFENSES.here}
    if own and experiment.attack_workers:
        names = ", ".join(sorted(own))
        raise ConfigError(
            f"attack-workers is {experiment.attack_workers}; allowed: 0, as only this program has {names}"
        )
    _forget()
    if experiment.attack_workers:
        require_guard("simulations.audit", "attack_workers=0")
    preflight(experiment, lambda line: warnings.warn(line.removeprefix("warning: "), stacklevel=4))
    with scratch_folder():
        run_experiment(LocalGrid(experiment.num_clients, cpus_per_client), experiment, in_process=True)
    return Audited(Path(experiment.output_dir))


def _text_of(defenses: Any) -> str:
    """Defences as text; the process learns the classes of objects."""
    several = defenses if isinstance(defenses, list | tuple) else [defenses]
    stages = [stage for one in several if not isinstance(one, str) for stage in getattr(one, "defenses", (one,))]
    with naming("defenses"):
        for stage in stages:
            DEFENSES.learn(type(stage))
    return "; ".join(map(str, several))


def _forget() -> None:
    """Empty the caches of this process, whose keys are texts: a class or a file may have new content under the same name."""
    modules = [module for name, module in list(sys.modules.items()) if name.partition(".")[0] in PACKAGES]
    for value in (value for module in modules for value in vars(module).values()):
        if isinstance(value, functools._lru_cache_wrapper) and inspect.signature(value).parameters:
            value.cache_clear()
    runner.learned.clear()


def run_in_process(console: Terminal, experiment: Experiment, resources: Resources) -> int:
    """Run a checked experiment with an output folder on this machine, print how it ended, and return the exit code."""
    out, started = Path(experiment.output_dir), time.monotonic()
    end_politely()
    if experiment.attack_workers:
        with undisturbed():  # the tracker inherits this, and so survives a closing terminal until its work is done
            resource_tracker.ensure_running()
    try:
        with flower_log(out / "flower.log") as begin, _followed(console, out, begin), scratch_folder():
            run_experiment(LocalGrid(experiment.num_clients, resources.cpus_per_client), experiment, in_process=True)
    except KeyboardInterrupt:
        return stop_run(out)
    except ConfigError as error:  # such as a damaged file of a resumed run: repeating the command would not help
        errors.print(f"[red]error:[/red] {escape(str(error))}", soft_wrap=True)
        return 2
    except (RuntimeError, OSError) as error:
        return fail_run(out, f"{type(error).__name__}: {error}")
    return conclude(console, out, started)


@contextmanager
def _followed(console: Terminal, out: Path, begin: int) -> Iterator[None]:
    """Shows how far a run is that goes on within; a thread reads what the run writes, as that of a run elsewhere is read."""
    ended = threading.Event()
    shown = threading.Thread(
        target=follow, args=(console, ended.wait, out, begin, STEPS_IN_PROCESS), name="progress", daemon=True
    )
    shown.start()
    try:
        yield
    finally:
        ended.set()
        shown.join()


def place_of(key: str, code: Any) -> str:
    """Text by which other processes find a class or function: ``package.module:NAME``, or ``FILE.py:NAME`` of the script."""
    module, name = getattr(code, "__module__", ""), getattr(code, "__qualname__", "")
    file = getattr(sys.modules.get(module), "__file__", None)
    if not name.isidentifier() or not file:
        raise ConfigError(
            f"{key} is {code!r}; allowed: a name, or a class or function at the top level of a module or script, where "
            "other processes look for it"
        )
    return f"{Path(file).resolve()}:{name}" if module == "__main__" else f"{module}:{name}"


def path_or_none(name: str, path: Any) -> Path | None:
    """Convert an argument to a path; None stays None. An empty text, of which ``Path`` makes the working directory, is refused."""
    if path is None:
        return None
    if not isinstance(path, str | os.PathLike) or not str(path) or "\0" in str(path):
        raise ConfigError(f"{name} is {path!r}; allowed: a path")
    return Path(path)


@contextmanager
def flower_log(path: Path) -> Iterator[int]:
    """Context in which Flower's logger writes to the end of a file and nowhere else; yields the file's size before.

    Handlers, propagation and level of the logger are put back at the end.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    begin = path.stat().st_size if path.is_file() else 0
    log, kept = logging.getLogger("flwr"), logging.FileHandler(path, encoding="utf-8", errors="backslashreplace")
    kept.setFormatter(logging.Formatter("%(asctime)s %(levelname)s: %(message)s"))
    before = log.handlers, log.propagate, log.level
    log.handlers, log.propagate = [kept], False
    if not log.isEnabledFor(logging.INFO):
        log.setLevel(logging.INFO)
    try:
        yield begin
    finally:
        log.handlers, log.propagate = before[:2]
        log.setLevel(before[2])
        kept.close()
