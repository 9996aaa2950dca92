"""A run directory as reports and tables read it: rows, configuration and studies, as far as they exist."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from simulations.console.results import finite
from simulations.report.analysis.finding import Finding, findings_of
from simulations.report.analysis.message import Message
from simulations.report.analysis.sentences import in_plain_words, notes, recommendation
from simulations.report.studies.control import validate
from simulations.report.studies.plain import Plain, plain_words_of
from simulations.report.studies.rows import read_row_file
from simulations.report.studies.study import Study, split
from simulations.run_folder.line_files import whole_characters
from simulations.run_folder.rows import Row


@dataclass(frozen=True)
class Summary:
    """The findings of one study, in the order of its pipelines."""

    study: Study
    findings: Sequence[Finding]

    @cached_property
    def plain(self) -> Plain:
        """Words for the run without a defence."""
        return plain_words_of(self.study.rows)

    @cached_property
    def said(self) -> list[str]:
        """What attacks found, in sentences."""
        return in_plain_words(self.findings, self.plain)

    @cached_property
    def recommendation(self) -> str:
        """Which defence the measurements support, or that they support none; "" without a choice."""
        return recommendation(self.findings)

    @cached_property
    def notes(self) -> list[str]:
        """Caveats, each behind the names of its defences."""
        return notes(self.findings, self.plain.name.lower())

    @property
    def ladder(self) -> Sequence[Message]:
        """Each kind and size of message once: real ones first, each from the smallest to the largest."""
        messages = {message.place: message for finding in self.findings for message in finding.messages}
        return sorted(messages.values(), key=lambda message: message.order)

    def name(self, finding: Finding) -> str:
        """What texts call a defence."""
        return finding.defense or self.plain.name.lower()


@dataclass(frozen=True)
class ReadRun:
    """Content of a run directory.

    Attributes:
        rows: Validated rows.
        config: ``config.json``; empty where it is missing or cannot be read.
        damaged_lines: A note on each line of rows that was left out.
        other_notes: What else a reader must know of rows and configuration.
        damage: A sentence that names the folder and counts its damaged lines of rows; "" where there is none.
    """

    rows: tuple[Row, ...]
    config: Mapping[str, Any]
    damaged_lines: tuple[str, ...] = ()
    other_notes: tuple[str, ...] = ()
    damage: str = ""

    @property
    def notes(self) -> tuple[str, ...]:
        """All notes."""
        return self.damaged_lines + self.other_notes

    @property
    def settings(self) -> Mapping[str, Any]:
        """Those of the configuration; empty where it has none."""
        return self._part("config")

    @property
    def finished(self) -> bool:
        """Whether the configuration says so."""
        return self._part("progress").get("finished") is True

    @property
    def order(self) -> list[str]:
        """Pipeline texts of the configuration, in its order."""
        order = self.config.get("pipelines")
        return [str(pipeline) for pipeline in order] if isinstance(order, list) else []

    @cached_property
    def studies(self) -> tuple[Study, ...]:
        """In order of appearance; a model that is served at several cuts is one study for each."""
        return tuple(split(self.rows, self.order))

    @cached_property
    def summaries(self) -> tuple[Summary, ...]:
        """What each study shows."""
        state, defenses = self._part("progress"), self._part("defenses")
        running = bool(state) and not (state.get("finished") or state.get("failed"))
        return tuple(Summary(study, findings_of(study, defenses, running=running)) for study in self.studies)

    def _part(self, name: str) -> Mapping[str, Any]:
        part = self.config.get(name)
        return part if isinstance(part, Mapping) else {}

    def to_json(self) -> list[dict[str, Any]]:
        """The findings for programs, each with its study; numbers that are not finite are null."""
        return [
            {"study": " · ".join(of.study.words), **finite(finding.to_json())}
            for of in self.summaries
            for finding in of.findings
        ]

    def beside(self, other: ReadRun) -> ReadRun:
        """Both runs together, with this one's configuration: runs that differ in their seeds, and in their experiment's name."""
        damaged, notes = self.damaged_lines + other.damaged_lines, self.other_notes + other.other_notes
        rows, name = other.rows, self.settings.get("experiment")
        if isinstance(name, str) and name != other.settings.get("experiment"):
            # Rows of another name would be another study, and never be averaged with these.
            rows = tuple(replace(row, experiment=name) for row in rows)
        return ReadRun(self.rows + rows, self.config, damaged, notes)


def read_run(directory: Path) -> ReadRun:
    """Read ``rows.jsonl`` and ``config.json``; no content of these files makes it fail."""
    file = read_row_file(directory / "rows.jsonl")
    config, notes = _read_config(directory / "config.json")
    rows = tuple(validate(file.rows))
    return ReadRun(rows, config, tuple(file.damage), (*file.notes, *notes), file.damaged(directory))


def _read_config(path: Path) -> tuple[dict[str, Any], list[str]]:
    """The configuration, and a note when it is missing or cannot be read."""
    if not path.is_file():
        return {}, [f"{path.name} is {'no file' if path.exists() else 'missing'}"]
    try:
        data = whole_characters(json.loads(path.read_text(encoding="utf-8", errors="replace")))
    except (ValueError, RecursionError):
        return {}, [f"{path.name} is not JSON"]
    return (data, []) if isinstance(data, dict) else ({}, [f"{path.name} is not an object"])
