"""Finished runs in TensorBoard: ``fedveil run --track tensorboard``, ``fedveil report DIR --track tensorboard``."""

from __future__ import annotations

import re
import shutil
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from clients.wire.texts import read_object
from simulations.console.command_line import errors
from simulations.console.terminal import Terminal
from simulations.settings.errors import ConfigError

if TYPE_CHECKING:  # reading rows imports torch, which ``fedveil --help`` need not
    from simulations.run_folder.rows import Row

EXIT_NOT_TRACKED = 4
"""The run ended, and its numbers could not be written for TensorBoard."""


def parse_track(text: str) -> bool:
    """Whether ``--track`` names TensorBoard; ``ConfigError`` for another name, and where it is not installed."""
    if text not in ("", "tensorboard"):
        raise ConfigError(f"--track is {text!r}; allowed: tensorboard")
    if text and find_spec("tensorboard") is None:
        raise ConfigError("--track tensorboard: not installed; install it with: pip install 'fedveil[tensorboard]'")
    return bool(text)


def track_run(console: Terminal, directory: Path) -> int:
    """Write a finished run for TensorBoard, into its folder; returns the exit code."""
    try:
        write_events(directory)
    except Exception as error:  # must not cost the finished run
        again = f"try again with: fedveil report {directory} --track tensorboard"
        errors.say(f"not tracked: {' '.join(str(error).split()) or type(error).__name__}; {again}")
        return EXIT_NOT_TRACKED
    console.say(f"tensorboard: {directory / 'tensorboard'}; look with: tensorboard --logdir {directory.parent}")
    return 0


def write_events(directory: Path) -> None:
    """Write settings, versions, conclusions and all numbers of a run, by round, into its folder ``tensorboard``."""
    from torch.utils.tensorboard import SummaryWriter

    from simulations.report.analysis.run import read_run
    from simulations.report.analysis.sentences import sentence
    from simulations.report.studies.rows import read_rows

    about = read_object(directory / "config.json")
    settings = about["config"] | {f"version.{package}": version for package, version in about["versions"].items()}
    found = [one for of in read_run(directory).summaries for one in of.findings]
    shutil.rmtree(folder := directory / "tensorboard", ignore_errors=True)  # else numbers of an earlier time would stay
    with SummaryWriter(str(folder)) as writer:
        table = "\n".join(f"| {name} | {str(value).replace('|', '/')} |" for name, value in settings.items())
        writer.add_text("settings", f"| setting | value |\n|---|---|\n{table}")
        said = "\n\n".join(f"**{one.defense or 'No defence'}**: {sentence(one)}" for one in found)
        writer.add_text("conclusions", said)
        for (name, step), value in numbers(read_rows(directory / "rows.jsonl")[0]).items():
            writer.add_scalar(name, value, step)


def numbers(rows: list[Row]) -> dict[tuple[str, int], float]:
    """Name and round of each row's number -> the number; a name that another row of the round has gets a number behind it."""
    found: dict[tuple[str, int], float] = {}
    for row in rows:
        if row.value is not None:
            name, more = metric_name(row), 1
            while (key := (f"{name}.{more}" if more > 1 else name, row.round)) in found:
                more += 1
            found[key] = row.value
    return found


def metric_name(row: Row) -> str:
    """Name a row's number ``DEFENCE/ATTACK/OBSERVATION/METRIC-REFERENCE``; behind one that does not count stands its status."""
    parts = [row.defense or "no-defence", row.attack or "training"]
    parts += [row.card.observation] if row.card.observation and row.attack else []
    parts += [f"client {row.client}"] if row.client is not None else []
    parts += [f"cut {row.cut}"] if row.cut else []
    parts += [f"{row.metric}-{row.reference}" if row.reference else row.metric]
    name = "/".join(re.sub(r"[^\w.]+", "-", part).strip("-") for part in parts)  # DPSGD(epsilon=2) -> DPSGD-epsilon-2
    return name if row.status == "ok" else f"{name}.{row.status}"
