"""What a run shows of one study: a finding for each defence, and what they say together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from simulations.report.analysis.finding import Finding
from simulations.report.analysis.sentences import in_plain_words, notes, recommendation
from simulations.report.studies.plain import Plain, plain_words_of
from simulations.report.studies.study import Study


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

    def name(self, finding: Finding) -> str:
        """What texts call a defence."""
        return finding.defense or self.plain.name.lower()
