"""Findings of attacks on a recorded update or a recording, as the terminal shows them and as programs read them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.table import Table

from attacks.metrics.costs import ATTACK
from attacks.metrics.metric import IMAGES, LABELS
from attacks.metrics.names import Role
from simulations.console.command_line import errors
from simulations.console.results import table
from simulations.console.terminal import Terminal
from simulations.report.analysis.run import ReadRun
from simulations.report.studies.cell import Cell
from simulations.report.text import decibel, percent, percentage, within
from simulations.run_folder.rows import Row
from simulations.runtime.findings import recovered_text


@dataclass(frozen=True)
class AttackFinding:
    """The result of one attack on an update, or on the replies of a recorded round.

    Attributes:
        attack: Attack text.
        round: Of the recording; None of a single update.
        recovered: Images that it recovered, of ``attacked``; None where that was not judged.
        share: Likewise in [0, 1], with the 95 % interval ``low`` to ``high``.
        psnr: Mean over its images, in dB; ``best_psnr``: the highest. None where no image was scored.
        labels: Share of the classes that it has right; None where they were not scored.
        status: Of its score, such as "not-validated"; "" where there is none.
        failure: Why it gave no guess; "" where it gave one.
    """

    attack: str
    round: int | None = None
    recovered: int | None = None
    attacked: int | None = None
    share: float | None = None
    low: float | None = None
    high: float | None = None
    psnr: float | None = None
    best_psnr: float | None = None
    labels: float | None = None
    status: str = ""
    failure: str = ""

    @property
    def result(self) -> str:
        """The recovery in words, or the failure."""
        if self.failure:
            return "failed"
        shown = "" if self.recovered is None else f"{self.recovered} of {self.attacked}"
        interval = within(self.low, self.high, percentage)
        return recovered_text(shown, self.status, f"{interval} %" if interval else "")


def of_entries(entries: Iterable[Mapping[str, Any]]) -> list[AttackFinding]:
    """Findings on a single update, from the entries of ``result.json``."""
    found = []
    for entry in entries:
        scores = {} if entry["failure"] else entry["scores"]  # those of a failed attack are of a grey image
        psnr, labels = scores.get("psnr"), scores.get("label-accuracy")
        images = {"psnr": sum(psnr) / len(psnr), "best_psnr": max(psnr)} if psnr else {}
        found.append(AttackFinding(entry["attack"], labels=labels, failure=entry["failure"], **images))
    return found


def of_recording(read: ReadRun, rows: Iterable[Row]) -> list[AttackFinding]:
    """Findings on a recording, in order of rounds."""
    failures = {(row.round, row.attack): row.message for row in rows if row.is_attack and row.metric == ATTACK.name}
    cells = [cell for study in read.studies for cell in study.cells if cell.role is Role.ATTACK]
    found = [_of_cell(cell, failures.get((cell.round, cell.attack), "")) for cell in cells]
    return sorted(found, key=lambda one: one.round or 0)


def _of_cell(cell: Cell, failure: str) -> AttackFinding:
    if failure:
        return AttackFinding(cell.attack, cell.round, failure=failure)
    images, share = cell.psnr, cell.share
    recovered, attacked = cell.recovered or (None, None)
    return AttackFinding(
        cell.attack,
        cell.round,
        recovered,
        attacked,
        *((share.mean, share.low, share.high) if share else (None, None, None)),
        *((images.mean, images.worst) if images else (None, None)),
        cell.mean(*LABELS.decides),
        cell.status if cell.mean(*IMAGES.decides) is not None else "",
    )


def print_found(console: Terminal, found: Sequence[AttackFinding], guesses: Path, *, scored: bool) -> None:
    """Print a table of the attacks, or where the guesses are if none was ``scored``; and, as errors, which attacks failed."""
    made = [one for one in found if not one.failure]
    if scored:
        console.print(_table(found))
    elif made:
        names = "; ".join(dict.fromkeys(one.attack for one in made))
        console.say(f"No guess was scored, as no originals were given. The guesses of {names} are in {guesses}")
    for one in found:
        if one.failure:
            where = "" if one.round is None else f"round {one.round}, "
            errors.say(f"{where}{one.attack} failed: {one.failure}")


def _table(found: Sequence[AttackFinding]) -> Table:
    """A line for each attack, and of a recording for each round."""
    rounds = [] if all(one.round is None for one in found) else ["round"]
    rows = (
        [
            *(str(one.round) for _ in rounds),
            one.attack,
            one.result,
            decibel(one.psnr),
            decibel(one.best_psnr),
            percent(one.labels),
        ]
        for one in found
    )
    return table([*rounds, "attack", "recovered"], ("mean PSNR", "best PSNR", "labels"), rows)
