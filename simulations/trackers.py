"""Finished runs in experiment trackers: ``fedveil run --track mlflow``, ``fedveil report DIR --track tensorboard``."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from simulations.console.command_line import errors
from simulations.console.terminal import Terminal
from simulations.settings.errors import ConfigError

if TYPE_CHECKING:  # reading rows imports torch, which ``fedveil --help`` need not
    from simulations.run_folder.rows import Row

EXIT_NOT_TRACKED = 4
"""The run ended, and a tracker did not take it."""
LONGEST_NAME = 250
"""Characters of a metric's name, of which MLflow takes no more."""


@dataclass(frozen=True)
class Tracked:
    """A finished run for trackers: settings and versions, numbers by round, the report's sentences in Markdown, files.

    A metric is named ``DEFENCE/ATTACK/OBSERVATION/METRIC-REFERENCE``. A number that the report does not let count has its status
    behind it, such as ``.not-validated``, so that no chart shows it as one that does. Values may be infinite.
    """

    directory: Path
    experiment: str
    params: Mapping[str, str]
    metrics: Mapping[int, Mapping[str, float]]
    conclusions: str

    @classmethod
    def of(cls, directory: Path) -> Self:
        """Reads a run's folder; raises ``OSError`` when there is no run in it."""
        from simulations.report.analysis.run import read_run
        from simulations.report.analysis.sentences import sentence
        from simulations.report.analysis.summary import summarise
        from simulations.report.studies.rows import read_rows

        about = json.loads((directory / "config.json").read_text(encoding="utf-8"))
        config = about["config"] | {f"version.{package}": version for package, version in about["versions"].items()}
        params = {key: value if isinstance(value, str) else json.dumps(value) for key, value in config.items()}
        metrics: dict[int, dict[str, float]] = {}
        for row in read_rows(directory / "rows.jsonl")[0]:
            if row.value is not None:
                of_round = metrics.setdefault(row.round, {})
                of_round[_free(metric_name(row), of_round)] = row.value
        lines = [line for study in read_run(directory).studies for line in summarise(study, {})]
        conclusions = "\n\n".join(f"**{line.defense or 'No defence'}**: {sentence(line)}" for line in lines)
        return cls(directory, params.get("experiment") or "fedveil", params, dict(sorted(metrics.items())), conclusions)

    def files(self) -> list[str]:
        """Paths of the files that a tracker gets."""
        names = ("report.html", "attacks.html", "rows.csv", "rows.jsonl", "config.json")
        return [str(path) for name in names if (path := self.directory / name).is_file()]


def metric_name(row: Row) -> str:
    """Name a row's number in a tracker, with letters, digits and ``_-./`` only."""
    parts = [row.defense or "no-defence", row.attack or "training"]
    parts += [row.card.observation] if row.card.observation and row.attack else []
    parts += [f"client {row.client}"] if row.client is not None else []
    parts += [f"cut {row.cut}"] if row.cut else []
    parts += [f"{row.metric}-{row.reference}" if row.reference else row.metric]
    name = "/".join(map(_plain, parts))
    return name if row.status == "ok" else f"{name}.{_plain(row.status)}"


def _plain(text: str) -> str:
    """``DPSGD(epsilon=2)`` -> "DPSGD-epsilon-2"."""
    return re.sub(r"[^\w.]+", "-", text).strip("-")


def _free(name: str, taken: Mapping[str, float]) -> str:
    """Append a number to a name that another row of the round already has."""
    short = name if len(name) <= LONGEST_NAME else f"{name[:120]}...{name[-120:]}"
    return next(one for at in range(len(taken) + 1) if (one := f"{short}.{at + 1}" if at else short) not in taken)


def _parts(values: Mapping[str, Any], most: int) -> Iterator[dict[str, Any]]:
    for at in range(0, len(values), most):
        yield dict(list(values.items())[at : at + most])


def _to_mlflow(tracked: Tracked) -> str:
    import mlflow

    known = mlflow.get_experiment_by_name(tracked.experiment)
    experiment = known.experiment_id if known else mlflow.create_experiment(tracked.experiment)
    name, conclusions = tracked.directory.name, tracked.conclusions
    with mlflow.start_run(experiment_id=experiment, run_name=name, description=conclusions) as run:
        # A request takes 100 parameters, of 6000 characters each (config.json, among the files, has all), or 1000 numbers.
        for some in _parts({key: value[:6000] for key, value in tracked.params.items()}, 100):
            mlflow.log_params(some)
        for step, values in tracked.metrics.items():
            for numbers in _parts(values, 1000):
                mlflow.log_metrics(numbers, step=step)
        for file in tracked.files():
            mlflow.log_artifact(file)
    return f"run {run.info.run_id} of experiment {tracked.experiment!r} at {mlflow.get_tracking_uri()}"


def _to_tensorboard(tracked: Tracked) -> str:
    from torch.utils.tensorboard import SummaryWriter

    folder = tracked.directory / "tensorboard"
    shutil.rmtree(folder, ignore_errors=True)  # else numbers of an earlier time would stand beside those of today
    with SummaryWriter(str(folder)) as writer:
        settings = "\n".join(f"| {name} | {value.replace('|', '/')} |" for name, value in tracked.params.items())
        writer.add_text("settings", f"| setting | value |\n|---|---|\n{settings}")
        writer.add_text("conclusions", tracked.conclusions)
        for step, values in tracked.metrics.items():
            for name, value in values.items():
                writer.add_scalar(name, value, step)
    return f"{folder}; look with: tensorboard --logdir {tracked.directory.parent}"


def _to_wandb(tracked: Tracked) -> str:
    import wandb

    run = wandb.init(
        project=os.environ.get("WANDB_PROJECT", tracked.experiment), name=tracked.directory.name, notes=tracked.conclusions,
        config=dict(tracked.params), dir=tracked.directory,
        settings=wandb.Settings(silent=True, console="off", x_disable_stats=True),
    )  # fmt: skip
    with run:
        for step, values in tracked.metrics.items():
            run.log(dict(values), step=step)
        report = wandb.Artifact(f"report-{run.id}", type="report")
        for file in tracked.files():
            report.add_file(file)
        run.log_artifact(report)
    where = f"offline in {run.dir}; send it with: wandb sync" if run.offline else f"at {run.url}"
    return f"run {run.id} of project {run.project!r}, {where}"


def _ask_mlflow() -> None:
    import mlflow

    mlflow.search_experiments(max_results=1)


def _ask_wandb() -> None:
    """Require an API key; in a terminal, wandb asks for one."""
    import wandb

    if os.environ.get("WANDB_MODE", "online") in {"online", "run"} and not wandb.login():
        raise RuntimeError("no key: log in with `wandb login`, or set WANDB_MODE=offline")


SENDS = {"mlflow": _to_mlflow, "tensorboard": _to_tensorboard, "wandb": _to_wandb}
"""By the name of a tracker, which its package and the extra that installs it share."""
ASKS = {"mlflow": _ask_mlflow, "wandb": _ask_wandb}
"""What fails early where nothing can be reached."""


def parse_trackers(text: str) -> list[str]:
    """Names in ``mlflow`` or ``mlflow,tensorboard``; none of an empty text. Imports no tracker.

    Raises:
        ConfigError: For a name that nothing has, one that stands twice, or a package that is not installed.
    """
    names = [part.strip() for part in text.split(",")] if text else []
    for name in names:
        if name not in SENDS:
            raise ConfigError(f"--track: nothing is called {name!r}; known: {', '.join(SENDS)}")
        if names.count(name) > 1:
            raise ConfigError(f"--track: {name} stands twice")
        if find_spec(name) is None:
            raise ConfigError(f"--track {name}: not installed; install it with: pip install 'fedveil[{name}]'")
    return names


def require_reachable(trackers: Sequence[str]) -> None:
    """Refuse an unreachable tracker before the run starts: ``ConfigError`` with the tracker's own message."""
    for name in trackers:
        try:
            ASKS.get(name, lambda: None)()
        except Exception as error:  # each has its own kinds of them
            raise ConfigError(f"--track {name}: {_words(error)}") from error


def send_to_trackers(console: Terminal, trackers: Sequence[str], directory: Path) -> int:
    """Send a run's folder, with its report, to each tracker; returns the exit code."""
    code = 0
    for name in trackers:
        try:
            console.say(f"{name}: {SENDS[name](Tracked.of(directory))}")
        except Exception as error:  # an unreachable server must not cost the finished run
            again = f"try again with: fedveil report {directory} --track {name}"
            errors.say(f"not tracked: {name}: {_words(error)}; {again}")
            code = EXIT_NOT_TRACKED
    return code


def _words(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
