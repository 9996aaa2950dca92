"""What the report shows of a recording: the replies of each round, the verdict as far as there is one, and what was assumed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from simulations.report.analysis.line import Line
from simulations.report.studies.cell import Cell
from simulations.report.studies.study import Study
from simulations.run_folder.rows import Row

RECORDED = "recorded-updates"
"""Metric of the row of each round, whose further columns this section reads."""


@dataclass(frozen=True)
class Replies:
    """What was recorded of one round.

    Attributes:
        round: Server round.
        attacked: Replies that were attacked.
        examples: The least and the most examples behind one.
        local_steps: The fewest and the most local steps of one.
        unusable: Who sent nothing that could be attacked, and why.
    """

    round: int
    attacked: int
    examples: tuple[int, int]
    local_steps: tuple[int, int]
    unusable: tuple[str, ...]


@dataclass(frozen=True)
class Recording:
    """The section.

    Attributes:
        rounds: In order.
        verdict: One sentence, and never one about what was not measured.
        assumed: What nobody could know.
        clients: (number, node id) of every client that was attacked.
        scored: Whether the true images were given, so that guesses have scores.
    """

    rounds: tuple[Replies, ...]
    verdict: str
    assumed: tuple[str, ...]
    clients: tuple[tuple[str, str], ...]
    scored: bool = True


def recorded_updates(study: Study, lines: Sequence[Line]) -> Recording | None:
    """The section, or None for a study of no recording."""
    del lines  # It is about replies, not about defences.
    rows = sorted((row for row in study.rows if row.metric == RECORDED), key=lambda row: row.round)
    if not rows:
        return None
    scored = any(row.extra.get("scored") is True for row in rows)
    clients = {str(number): str(node) for row in rows for number, node in _mapping(row, "clients").items()}
    return Recording(
        tuple(_replies(row) for row in rows),
        _verdict(study, scored=scored),
        tuple(dict.fromkeys(text for row in rows for text in _texts(row, "assumed"))),
        tuple(sorted(clients.items(), key=lambda item: (len(item[0]), item[0]))),
        scored,
    )


def said_first(recording: Recording) -> str:
    """What must be known before anything else: that no number of the page is a score."""
    return "" if recording.scored else recording.verdict


def _verdict(study: Study, *, scored: bool) -> str:
    if not scored:
        return (
            "Nothing could be scored: the true images were not given (--originals). Only the people who hold the data can tell "
            "whether the guesses show it."
        )
    of_images = [cell for cell in study.cells if ("psnr", "original") in cell.scores]
    recovered = [cell for cell in of_images if cell.leaks and cell.picks]
    if validated := [cell for cell in recovered if cell.status == "ok"]:
        return f"Validated: {_named(validated)} recovered images from these updates."
    if any(cell.too_few for cell in of_images):
        return "Under-powered: too few images for a verdict."
    if recovered:
        return (
            f"{_named(recovered)} recovered images from these updates. There is no undefended recording beside them, so nothing "
            "says how much the defence took away."
        )
    reasons = "; ".join(dict.fromkeys(one.reason for one in study.controls if one.row.metric == "psnr" and one.reason))
    return (
        f"Not validated: no attack here recovered these images{f' ({reasons})' if reasons else ''}. That shows only that these "
        "attacks, with these settings, fail."
    )


def _named(cells: Sequence[Cell]) -> str:
    return "; ".join(dict.fromkeys(f"{cell.attack} in round {cell.round}" for cell in cells))


def _replies(row: Row) -> Replies:
    return Replies(row.round, row.n, _ends(row, "examples"), _ends(row, "local_steps"), tuple(_texts(row, "unusable")))


def _ends(row: Row, key: str) -> tuple[int, int]:
    numbers = [int(one) for one in _list(row, key) if isinstance(one, int | float)]
    return (min(numbers), max(numbers)) if numbers else (0, 0)


def _texts(row: Row, key: str) -> list[str]:
    return [str(one) for one in _list(row, key)]


def _list(row: Row, key: str) -> list[Any]:
    found = row.extra.get(key)
    return found if isinstance(found, list) else []


def _mapping(row: Row, key: str) -> Mapping[str, Any]:
    found = row.extra.get(key)
    return found if isinstance(found, Mapping) else {}
