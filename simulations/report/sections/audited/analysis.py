"""What the report shows of an audited app: what was taken where nothing could be known."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from simulations.report.analysis.study import Study
from simulations.report.analysis.summary import Line
from strategies.audited.assumed import ASSUMED


@dataclass(frozen=True)
class App:
    """The section.

    Attributes:
        assumed: What nobody could know.
    """

    assumed: tuple[str, ...]


def audited_app(study: Study, lines: Sequence[Line]) -> App | None:
    """The section, or None for a study of fedveil's own clients."""
    del lines  # It is about the app, not about defences.
    rows = sorted((row for row in study.rows if row.metric == ASSUMED), key=lambda row: row.round)
    told = (row.extra.get("assumed") for row in rows)
    found = tuple(dict.fromkeys(str(text) for one in told if isinstance(one, list) for text in one))
    return App(found) if rows else None
