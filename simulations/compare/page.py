"""The page that puts groups of runs side by side: a row for each of them, each study and each defence."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from simulations.compare.groups import Group, what_next
from simulations.report import write_page
from simulations.report.analysis.line import Line
from simulations.report.analysis.outcome import Finding, outcomes
from simulations.report.analysis.sentences import in_plain_words, recommendation
from simulations.report.analysis.verdict import rule
from simulations.report.drawing.chart import Axis, Chart, round_values
from simulations.report.drawing.looks import looks
from simulations.report.drawing.plots import DotRow, rows_of_dots
from simulations.report.page.templates import render
from simulations.report.studies.cell import FOUND
from simulations.report.studies.plain import OWN_CLIENTS, Plain, plain_words_of
from simulations.report.text import numbered, percent, whole_percent
from simulations.run_folder.places import is_there
from simulations.settings.errors import ConfigError

TITLE = "fedveil: runs side by side"
"""Title of the page, by which its file is known for a comparison."""
HEAD = 2000
"""Bytes at the beginning of a file within which a page's title stands."""


@dataclass(frozen=True)
class Side:
    """One row: a defence in a study of a group.

    Attributes:
        group: Of runs.
        study: Names of the study where the group has several; else "".
        line: What the report of the group says of the defence.
        finding: The same as the terminal and programs have it.
        seeds: Seeds that have the defence.
        notes: Which scores are missing or not of the same seeds, each a short clause.
        plain: What the run without a defence is called.
    """

    group: Group
    study: str
    line: Line
    finding: Finding
    seeds: tuple[int, ...]
    notes: tuple[str, ...]
    plain: Plain

    @property
    def scored(self) -> tuple[int, ...]:
        """Seeds for which the strongest attack has a score."""
        return _scored(self.line)


def sides(groups: Sequence[Group]) -> list[Side]:
    """Rows in the order of groups, studies and pipelines."""
    found = []
    for group in groups:
        studies = group.run.studies
        for study in studies:
            name = " · ".join(study.words) if len(studies) > 1 else ""
            plain = plain_words_of(study.rows)
            lines = group.run.lines(study)
            undefended = next((line for line in lines if not line.defense), None)
            for line, finding in zip(lines, outcomes(lines), strict=True):
                seeds = tuple(sorted({row.seed for row in study.rows if row.defense == line.defense}))
                notes = tuple(_missing(line, seeds, undefended, plain.name.lower()))
                found.append(Side(group, name, line, finding, seeds, notes, plain))
    return found


def _scored(line: Line) -> tuple[int, ...]:
    """Seeds behind the score of the strongest attack."""
    return tuple(line.worst.score.by_seed) if line.worst and line.worst.score else ()


def _measured(line: Line) -> tuple[int, ...]:
    """Seeds behind the accuracy."""
    return tuple(line.deployed.by_seed) if line.deployed else ()


def _missing(line: Line, seeds: Sequence[int], undefended: Line | None, name: str) -> Iterator[str]:
    """What a row must say of its seeds: those without a score, and where the line called ``name`` has others."""
    for what, of in (("the strongest attack", _scored), ("the accuracy", _measured)):
        mine = of(line)
        if mine and (missing := [seed for seed in seeds if seed not in mine]):
            yield f"{what} has no score of {numbered('seed', missing)}"
        theirs = of(undefended) if undefended and line.defense else ()
        if mine and theirs and set(mine) != set(theirs):
            yield f"{what} is of {numbered('seed', mine)}, that of {name} of {numbered('seed', theirs)}"


def require_page(page: Path) -> None:
    """Refuse a path at which ``write_comparison`` would replace anything but a page of its own.

    Raises:
        ConfigError: When the path does not end in .html, or something else than a comparison is there.
    """
    if page.suffix.lower() != ".html":
        raise ConfigError(f"--out is {page}; expected the name of an HTML file, which ends in .html")
    if not is_there(page, "--out"):
        return
    if not page.is_file():
        raise ConfigError(f"--out: {page} is no file; name another")
    with page.open("rb") as file:
        if f"<title>{TITLE}</title>".encode() not in file.read(HEAD):
            raise ConfigError(f"--out: {page} exists and is no comparison by fedveil; name another file, or delete it")


def write_comparison(groups: Sequence[Group], page: Path) -> None:
    """Write the page, whole or not at all; links to the runs' own reports are relative to it."""
    rows = sides(groups)
    context = {
        "title": TITLE,
        "groups": groups,
        "upper_bounds": {},
        "plain_name": OWN_CLIENTS.name,
        "folders": sum(len(group.folders) for group in groups),
        "rows": rows,
        "seeds": _each_seed(rows),
        "said": [
            [
                said
                for study in group.run.studies
                for lines in [group.run.lines(study)]
                for said in [*in_plain_words(lines, plain_words_of(study.rows)), recommendation(lines)]
                if said
            ]
            for group in groups
        ],
        "rule": rule(),
        "next": what_next(groups),
        "links": {one: _link(one / "report.html", page) for group in groups for one in group.folders},
        "notes": [
            *(f"{one} is not finished" for group in groups for one in group.unfinished),
            *(note for group in groups for note in (*group.damaged, *group.notes)),
        ],
    }
    write_page(page, render("comparison.html", context))


def _each_seed(sides: Sequence[Side]) -> Chart | None:
    """The share of identified images of each seed; None unless a row has several seeds."""
    faces = looks(list(dict.fromkeys(one.line.defense for one in sides)))
    rows = []
    for one in sides:
        share = one.line.strongest.scores.get(FOUND) if one.line.strongest else None
        if share is None:
            continue
        look = faces[one.line.defense]
        name = ", ".join(
            filter(None, (one.plain.name if not one.line.defense else look.name, one.group.name, one.study))
        )
        dots = [(value, f"{name}: {percent(value)}, seed {seed}", look.shape) for seed, value in share.by_seed.items()]
        rows.append(DotRow(name, look, dots, share.ends))
    if all(len(row.dots) < 2 for row in rows):
        return None
    across = Axis("Images identified", 0, 1, round_values(0, 1, 5), whole_percent)
    return rows_of_dots(
        rows, across, "One mark per seed", "Share of identified images of each seed, one row per defence"
    )


def _link(report: Path, page: Path) -> str:
    return Path(os.path.relpath(report.resolve(), page.resolve().parent)).as_posix()
