"""The page that puts groups of runs side by side: a row for each of them, each study and each defence."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from simulations.compare.groups import Group, what_next
from simulations.report import write_page
from simulations.report.analysis.finding import Finding
from simulations.report.analysis.message import Message, rule
from simulations.report.analysis.run import Summary
from simulations.report.columns import Column, Shown, Table, change, code, number, over_interval, pill
from simulations.report.page.templates import render
from simulations.report.studies.score import Score
from simulations.report.text import NOTHING, breakable, numbered, percentage, two
from simulations.run_folder.folder_lock import require_ours
from simulations.settings.errors import ConfigError

TITLE = "fedveil: runs side by side"
"""Title of the page, by which its file is known for a comparison."""


@dataclass(frozen=True)
class Side:
    """One row: a defence in a study of a group; ``undefended``: what the same study found without one."""

    group: Group
    summary: Summary
    finding: Finding
    undefended: Finding | None

    @property
    def study(self) -> str:
        """Names of the study where the group has several; else ""."""
        return " · ".join(self.summary.study.words) if len(self.group.run.studies) > 1 else ""

    @property
    def seeds(self) -> Sequence[int]:
        """Seeds that have the defence."""
        return sorted({row.seed for row in self.summary.study.rows if row.defense == self.finding.defense})

    @property
    def measured(self) -> Sequence[int]:
        """Seeds for which the strongest attack has a score, or else those that have the defence."""
        return _seeds(_strongest(self.finding)) or self.seeds

    @property
    def notes(self) -> tuple[str, ...]:
        """Seeds without a score, and where the run without a defence has others, each a short clause."""
        clauses = []
        for what, of in (("the strongest attack", _strongest), ("the accuracy", _accuracy)):
            mine, theirs = _seeds(of(self.finding)), _seeds(of(self.undefended))
            if mine and (missing := [seed for seed in self.seeds if seed not in mine]):
                clauses.append(f"{what} has no score of {numbered('seed', missing)}")
            if mine and theirs and mine != theirs:
                other = f"that of {self.summary.plain.name.lower()} of {numbered('seed', theirs)}"
                clauses.append(f"{what} is of {numbered('seed', mine)}, {other}")
        return tuple(clauses)


Line = tuple[Side, Message | None]
"""A row of the table: one kind and size of message of a side; None where nothing was attacked."""


def _seeds(score: Score | None) -> Sequence[int]:
    return list(score.by_seed) if score else []


def _strongest(finding: Finding | None) -> Score | None:
    return finding.worst.score if finding and finding.worst else None


def _accuracy(finding: Finding | None) -> Score | None:
    return finding.accuracy.deployed if finding else None


def sides(groups: Sequence[Group]) -> list[Side]:
    """Rows in the order of groups, studies and pipelines."""
    rows = []
    for group in groups:
        for summary in group.run.summaries:
            plain = next((finding for finding in summary.findings if not finding.defense), None)
            rows += [Side(group, summary, finding, plain if finding.defense else None) for finding in summary.findings]
    return rows


def every_defence(sides: Sequence[Side]) -> Table:
    """A row for each kind and size of message of each side."""

    def of_message(show: Callable[[Message], object]) -> Callable[[Line], object]:
        return lambda row: row[1] and show(row[1])

    def defence(row: Line) -> Shown:
        side, first = row[0], (*row[0].finding.every_message[:1], None)[0] is row[1]
        name = code(side.finding.defense) if side.finding.defense else side.summary.plain.name
        return Shown(name, (*side.finding.all_caveats, *side.notes) if first else ())

    def epsilon(row: Line) -> Shown:
        of = row[0].finding
        return Shown(two(of.epsilon), (", ".join(of.budget.lines),) if of.budget else ())

    columns = (
        Column("Experiment", lambda row: Shown(row[0].group.name, (row[0].study,))),
        Column("Defence", defence, "wide"),
        Column("message", of_message(lambda message: message.title)).opening,
        Column("verdict", of_message(lambda message: pill(message.verdict))),
        number("images", of_message(lambda message: Shown(message.shown or NOTHING, (message.interval,)))),
        Column("strongest attack", of_message(lambda message: breakable(message.attack) or None)),
        Column("against no defence", of_message(lambda message: message.difference and message.difference.text)),
        number("accuracy, %", lambda row: over_interval(row[0].finding.accuracy.deployed, percentage)).opening,
        number("change", lambda row: change(row[0].finding)),
        number("ε", epsilon).opening,
        number("seeds", lambda row: Shown(len(row[0].measured), (", ".join(map(str, row[0].measured)),))).opening,
    )
    rows = [(side, message) for side in sides for message in side.finding.every_message or [None]]
    return Table("Every defence", columns, rows, look="")


def require_page(page: Path, key: str = "--out") -> None:
    """Refuse a path, given as ``key``, at which ``write_comparison`` would replace anything but a page of its own.

    Raises:
        ConfigError: When the path does not end in .html, or something else than a comparison is there.
    """
    if page.suffix.lower() != ".html":
        raise ConfigError(f"{key} is {page}; expected the name of an HTML file, which ends in .html")
    require_ours(page, key, f"<title>{TITLE}</title>", "comparison")


def write_comparison(groups: Sequence[Group], page: Path) -> None:
    """Write the page, whole or not at all; links to the runs' own reports are relative to it."""
    context = {
        "title": TITLE,
        "groups": groups,
        "folders": sum(len(group.folders) for group in groups),
        "table_of_all": every_defence(sides(groups)),
        "rule": rule(),
        "next": what_next(groups),
        "links": {folder: _link(folder / "report.html", page) for group in groups for folder in group.folders},
        "notes": [
            *(f"{folder} is not finished" for group in groups for folder in group.unfinished),
            *(note for group in groups for note in (*group.damaged, *group.notes)),
        ],
    }
    write_page(page, render("comparison.html", context))


def _link(report: Path, page: Path) -> str:
    return Path(os.path.relpath(report.resolve(), page.resolve().parent)).as_posix()
