"""What the report shows of an audited app: what was taken where nothing could be known, and how far replies were from it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from simulations.report.analysis.line import Line
from simulations.report.studies.study import Study
from strategies.external_app.assumptions import AS_ASSUMED, ASSUMED, DIFFERENCE


@dataclass(frozen=True)
class Difference:
    """How far a client's reply was from one step on its examples.

    Attributes:
        round: Server round.
        client: Its number.
        share: Of the step's length, 0 for none.
    """

    round: int
    client: int
    share: float

    @property
    def as_assumed(self) -> bool:
        """Whether no more than rounding lies between."""
        return self.share <= AS_ASSUMED


@dataclass(frozen=True)
class App:
    """The section.

    Attributes:
        assumed: What nobody could know.
        differences: By round and client, where rounds are single steps.
    """

    assumed: tuple[str, ...]
    differences: tuple[Difference, ...]


def audited_app(study: Study, lines: Sequence[Line]) -> App | None:
    """The section, or None for a study of fedveil's own clients."""
    del lines  # It is about the app, not about defences.
    rows = sorted((row for row in study.rows if row.metric == ASSUMED), key=lambda row: row.round)
    told = (row.extra.get("assumed") for row in rows)
    found = tuple(dict.fromkeys(str(text) for one in told if isinstance(one, list) for text in one))
    apart = [
        Difference(row.round, row.client, row.value)
        for row in study.rows
        if row.metric == DIFFERENCE and row.value is not None and row.client is not None
    ]
    return App(found, tuple(sorted(apart, key=lambda one: (one.round, one.client)))) if rows else None
