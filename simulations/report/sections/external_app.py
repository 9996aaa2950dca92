"""The report's sections on an external Flower app: a recorded one, or one whose clients answer probes and score guesses."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from attacks.metrics.images import IDENTIFIED
from attacks.metrics.metric import IMAGES
from simulations.report.analysis.line import Line
from simulations.report.analysis.verdict import LEAKS, verdict_of
from simulations.report.section import Section
from simulations.report.studies.cell import Cell
from simulations.report.studies.control import LEAST_IMAGES
from simulations.report.studies.study import Study
from simulations.run_folder.rows import Row
from strategies.external_app.claim import CLAIMED, REPORTED
from strategies.external_app.orders import AS_ASSUMED, ASSUMED, DIFFERENCE

RECORDED = "recorded-updates"
"""Metric of the row of each recorded round, whose further columns are read here."""


@dataclass(frozen=True)
class Replies:
    """The recorded replies of one round.

    Attributes:
        round: Server round.
        attacked: Replies that were attacked.
        examples: The least and the most examples behind one.
        local_steps: The fewest and the most local steps of one.
        unusable: Clients that sent nothing that could be attacked, and why.
    """

    round: int
    attacked: int
    examples: tuple[int, int]
    local_steps: tuple[int, int]
    unusable: tuple[str, ...]


@dataclass(frozen=True)
class Recording:
    """A recorded app.

    Attributes:
        rounds: In order.
        verdict: One sentence, and never one about what was not measured.
        assumed: What could not be known.
        clients: (number, node id) of every client that was attacked.
        steps: (What to do, lines of code or a command) for guesses with scores; empty where there are scores.
        warnings: Sentences on learning rates of clients that attacks did not use.
    """

    rounds: tuple[Replies, ...]
    verdict: str
    assumed: tuple[str, ...]
    clients: tuple[tuple[str, str], ...]
    steps: tuple[tuple[str, str], ...] = ()
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class App:
    """An audited app.

    Attributes:
        assumed: What could not be known.
        differences: (round, client, distance of its reply from one step on its examples as a share of the step's length, whether
            no more than rounding lies between), where rounds are single steps.
        warnings: Sentences on learning rates of clients that attacks did not use.
    """

    assumed: tuple[str, ...]
    differences: tuple[tuple[int, int, float, bool], ...]
    warnings: tuple[str, ...] = ()


def recording(study: Study, _: Sequence[Line]) -> Recording | None:
    """The section on a recording; None for other studies."""
    rows = _of(study, RECORDED)
    if not rows:
        return None
    scored = any(row.extra.get("scored") is True for row in rows)
    numbers = (row.extra.get("clients") for row in rows)
    clients = {str(key): str(node) for of in numbers if isinstance(of, dict) for key, node in of.items()}
    return Recording(
        tuple(
            Replies(
                row.round,
                row.n,
                _ends(row, "examples"),
                _ends(row, "local_steps"),
                tuple(map(str, _list(row, "unusable"))),
            )
            for row in rows
        ),
        _verdict(study, scored=scored),
        _texts(rows, "assumed"),
        tuple(sorted(clients.items(), key=lambda item: (len(item[0]), item[0]))),
        _steps(rows),
        _texts(rows, "warnings"),
    )


def audited_app(study: Study, _: Sequence[Line]) -> App | None:
    """The section on an audited app; None for other studies."""
    rows = _of(study, ASSUMED)
    apart = (
        (row.round, row.client, row.value, row.value <= AS_ASSUMED)
        for row in _of(study, DIFFERENCE)
        if row.value is not None and row.client is not None
    )
    differences = tuple(sorted(apart, key=lambda one: one[:2]))
    return App(_texts(rows, "assumed"), differences, _texts(rows, "warnings")) if rows else None


def _of(study: Study, metric: str) -> list[Row]:
    return sorted((row for row in study.rows if row.metric == metric), key=lambda row: row.round)


def _texts(rows: Iterable[Row], key: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(str(text) for row in rows for text in _list(row, key)))


def _list(row: Row, key: str) -> list[Any]:
    found = row.extra.get(key)
    return found if isinstance(found, list) else []


def _ends(row: Row, key: str) -> tuple[int, int]:
    numbers = [int(one) for one in _list(row, key) if isinstance(one, int | float)]
    return (min(numbers), max(numbers)) if numbers else (0, 0)


def _steps(rows: Iterable[Row]) -> tuple[tuple[str, str], ...]:
    pairs = next((found for row in rows if (found := _list(row, "steps"))), [])
    return tuple((str(one[0]), str(one[1])) for one in pairs if isinstance(one, list) and len(one) == 2)


def _verdict(study: Study, *, scored: bool) -> str:
    if not scored:
        attacked = sum(row.n for row in _of(study, RECORDED))
        return (
            f"No guess was scored: the true images were not given (originals). The attacks ran on {attacked} "
            f"{'reply' if attacked == 1 else 'replies'}. Guesses of images are among the pictures below, if an attack made any. "
            "Only the people who hold the data can tell whether a guess shows an image of theirs."
        )
    of_images = [cell for cell in study.cells if cell.psnr]
    if found := [cell for cell in of_images if verdict_of(cell, len(of_images)) in LEAKS]:
        return f"{_named(found)} found images of these updates."
    if of_images and all(cell.scores[IMAGES.decides].attacked < LEAST_IMAGES for cell in of_images):
        return "Under-powered: too few images for a verdict."
    reasons = "; ".join(
        dict.fromkeys(one.reason for one in study.controls if one.row.metric == IDENTIFIED.name and one.reason)
    )
    return (
        f"Not validated: no attack here found these images{f' ({reasons})' if reasons else ''}. That shows only that these "
        "attacks, with these settings, fail."
    )


def _named(cells: Sequence[Cell]) -> str:
    return "; ".join(dict.fromkeys(f"{cell.attack} in round {cell.round}" for cell in cells))


SECTION = (
    Section(
        name="audited",
        title="The app",
        view=audited_app,
        template="sections/audited.html",
        metrics=(ASSUMED, CLAIMED, DIFFERENCE, REPORTED),
        first=lambda found: " ".join(found.warnings),
    ),
    Section(
        name="recorded",
        title="The recording",
        view=recording,
        template="sections/recorded.html",
        metrics=(RECORDED,),
        first=lambda found: " ".join((found.verdict, *found.warnings)),
        steps=lambda found: found.steps,
    ),
)
