"""What ``fedveil attack`` does with its options: an update in a file, or the folder of a recording."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from attacks.progress import watched
from simulations.external_app.recorded import attack_file
from simulations.external_app.recorded.attack_recording import prepare_recording, refuse_results, run_recording
from simulations.external_app.recorded.known import doubts_of
from simulations.external_app.recorded.replies import RecordingRequest
from simulations.external_app.recorded.request import Request
from simulations.forecast.preflight import require_folder
from simulations.report.sections.external_app import RECORDED
from simulations.run_folder.rows import Row

SECONDS_BETWEEN_LINES = 10.0
"""Of progress, where the output is no terminal."""


def attack_update(console: Console, request: Request, out: Path) -> bool:
    """Attack one update and print the results; returns whether all attacks failed.

    Raises:
        ConfigError: Before any work, for what cannot be run.
        OSError: When the folder cannot be made.
    """
    require_folder(out, "--out")
    refuse_results(out)
    prepared = attack_file.prepare(request)
    out.mkdir(parents=True, exist_ok=True)
    for notice in prepared.notices:
        console.print(f"notice: {notice}", markup=False, soft_wrap=True)
    with _shown(console) as begin:
        entries = attack_file.run(prepared, out, begin)
    for entry in entries:
        console.print(_ended(entry), markup=False, soft_wrap=True)
    console.print(f"results: {out / 'result.json'}", soft_wrap=True, markup=False)
    return all(entry["failure"] for entry in entries)


def attack_recording(console: Console, asked: RecordingRequest, out: Path) -> bool:
    """Attack a recording and print the assumptions and the results; returns whether all attacks failed.

    Raises:
        ConfigError: Before any work, for what cannot be run.
        OSError: When the folder cannot be made.
    """
    require_folder(out, "--out")
    refuse_results(out)
    prepared = prepare_recording(asked)
    out.mkdir(parents=True, exist_ok=True)
    replayed = prepared.replayed
    console.print(f"{len(replayed.attackable)} replies of {len(replayed.nodes)} nodes to attack", soft_wrap=True)
    for doubt in doubts_of(replayed.attackable[0].request, replayed.attackable[0].parsed):
        console.print(f"notice: {asked.request.model} {doubt}", markup=False, soft_wrap=True)
    for server_round, node, why in replayed.unusable:
        console.print(f"notice: round {server_round}, node {node}: {why}", markup=False, soft_wrap=True)
    for sentence in replayed.assumed:
        console.print(f"not known: {sentence}", markup=False, soft_wrap=True)
    with _shown(console) as begin:
        rows = run_recording(prepared, out, begin)
    for row in rows:
        if row.is_attack and (row.metric, row.reference) == ("psnr", "original"):
            console.print(_scored(row), markup=False, soft_wrap=True)
    console.print(f"report: {out / 'report.html'}", soft_wrap=True, markup=False)
    failed = {(row.round, row.attack) for row in rows if row.is_attack and row.metric == "attack"}
    return failed == {(row.round, row.attack) for row in rows if row.is_attack and row.metric != RECORDED}


@contextmanager
def _shown(console: Console) -> Iterator[Callable[[str], object]]:
    """Shows which attack runs and how far it is, in plain lines where the output is no terminal; yields what takes its name."""
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        row, log = bar.add_task("reading", total=None), _Log()

        def begin(name: str) -> None:
            bar.reset(row, total=None, description=name)
            if not console.is_terminal:
                console.print(f"{name} ...", markup=False, soft_wrap=True)

        def watch(done: int, total: int) -> None:
            if done < (bar.tasks[0].completed or 0):  # the next of several searches
                bar.reset(row)
            bar.update(row, completed=done, total=total)
            if not console.is_terminal and (line := log.line(done, total)):
                console.print(line, markup=False, soft_wrap=True)

        with watched(watch):
            yield begin


class _Log:
    """Now and then a line on how far an attack is and how long it may take, where the output is no terminal."""

    def __init__(self) -> None:
        self._since = self._printed = time.monotonic()
        self._before = 0

    def line(self, done: int, total: int) -> str:
        """What to print when so many steps are done; mostly nothing."""
        now = time.monotonic()
        if done <= self._before:  # the next of several searches
            self._since = now
        self._before = done
        if now - self._printed < SECONDS_BETWEEN_LINES:
            return ""
        self._printed = now
        return f"  step {done} of {total}, about {(now - self._since) / done * (total - done):.0f} s left"


def _scored(row: Row) -> str:
    """One line on how an attack on a round scored."""
    shown = "no score" if row.value is None else f"PSNR {row.value:.2f} dB, n = {row.n}"
    return f"round {row.round}, {row.attack}: {shown}, {row.status}"


def _ended(entry: dict[str, Any]) -> str:
    """One line on how an attack on a recorded update ended."""
    scores = ", ".join(
        f"{key} {value:.4g}" if isinstance(value, float) else f"{key} {[round(v, 3) for v in value]}"
        for key, value in entry["scores"].items()
    )
    ended = f"failed: {entry['failure']}" if entry["failure"] else scores or "done"
    return f"{entry['attack']}: {ended} ({entry['seconds']:.1f} s)"
