"""Finished runs in experiment trackers: ``fedveil run --track mlflow``, ``fedveil report DIR --track tensorboard``."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

from rich.console import Console

from simulations.console.command_line import errors
from simulations.settings.errors import ConfigError

EXIT_NOT_TRACKED = 4
"""The run is there, and a tracker did not take it."""


@dataclass(frozen=True)
class Tracker:
    """A tracker that runs can be sent to.

    Attributes:
        name: As people write it, and the extra that installs it.
        package: What must be importable.
        module: Ours with ``ready()``, which fails early where nothing can be reached, and ``send(tracked)``, which says
            where it went.
    """

    name: str
    package: str
    module: str

    def load(self) -> ModuleType:
        """Imports our side of it, and with it the tracker."""
        return importlib.import_module(self.module)


TRACKERS = {
    one.name: one
    for one in (
        Tracker("mlflow", "mlflow", "simulations.trackers.to_mlflow"),
        Tracker("tensorboard", "tensorboard", "simulations.trackers.to_tensorboard"),
        Tracker("wandb", "wandb", "simulations.trackers.to_wandb"),
    )
}


def parse_trackers(text: str) -> list[Tracker]:
    """``mlflow`` or ``mlflow,tensorboard`` as trackers; none of an empty text. Imports none of them.

    Raises:
        ConfigError: For a name that nothing has, one that stands twice, or a package that is not installed.
    """
    names = [part.strip() for part in text.split(",")] if text else []
    for name in names:
        if name not in TRACKERS:
            raise ConfigError(f"--track: nothing is called {name!r}; known: {', '.join(TRACKERS)}")
        if names.count(name) > 1:
            raise ConfigError(f"--track: {name} stands twice")
        if find_spec(TRACKERS[name].package) is None:
            raise ConfigError(f"--track {name}: not installed; install it with: pip install 'fedveil[{name}]'")
    return [TRACKERS[name] for name in names]


def require_reachable(trackers: Sequence[Tracker]) -> None:
    """Tries whether each takes runs, so that nobody learns it after hours of work.

    Raises:
        ConfigError: In the tracker's own words.
    """
    for tracker in trackers:
        try:
            tracker.load().ready()
        except Exception as error:  # each has its own kinds of them
            raise ConfigError(f"--track {tracker.name}: {_words(error)}") from error


def track(trackers: Sequence[Tracker], directory: Path) -> tuple[list[str], list[str]]:
    """Sends a run to each: settings as parameters, rows as metrics by round, report, rows and settings as artifacts.

    Args:
        trackers: Where to.
        directory: Folder of the run, with a report.

    Returns:
        Lines on what went where, and lines on what could not be sent; the run's own folder is whole in any case.
    """
    from simulations.trackers.tracked import Tracked

    sent, failed = [], []
    for tracker in trackers:
        try:
            sent.append(f"{tracker.name}: {tracker.load().send(Tracked.of(directory))}")
        except Exception as error:  # a server that is gone must not cost the run that it was to be told of
            again = f"try again with: fedveil report {directory} --track {tracker.name}"
            failed.append(f"{tracker.name}: {_words(error)}; {again}")
    return sent, failed


def tell_trackers(console: Console, trackers: Sequence[Tracker], directory: Path) -> int:
    """Sends a run to each and says what went where; the exit code."""
    sent, failed = track(trackers, directory)
    for line in sent:
        console.print(line, markup=False, soft_wrap=True)
    for line in failed:
        errors.print(f"not tracked: {line}", markup=False, soft_wrap=True)
    return EXIT_NOT_TRACKED if failed else 0


def _words(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
