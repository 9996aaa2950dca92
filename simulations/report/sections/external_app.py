"""The report's sections on an external Flower app: a recorded one, or one whose clients answer probes and score guesses."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from markupsafe import Markup

from attacks.metrics.images import IDENTIFIED
from attacks.metrics.metric import LEAST_IMAGES
from simulations.report.analysis.finding import Finding
from simulations.report.analysis.verdict import LEAKS
from simulations.report.columns import Column, Table
from simulations.report.section import Content, Section
from simulations.report.studies.study import Study
from simulations.report.text import NOTHING
from simulations.run_folder.rows import Row
from strategies.external_app.claim import CLAIMED, REPORTED
from strategies.external_app.trainings import ASSUMED

RECORDED = "recorded-updates"
"""Metric of the row of each recorded round, whose further columns are read here."""
ROUND = Column("Round", lambda row: row.round)
HELD = (
    ROUND,
    Column("|#replies attacked", lambda row: row.n),
    Column("#examples behind a reply", lambda row: _ends(row, "examples")),
    Column("#local steps", lambda row: _ends(row, "local_steps")),
    Column("|not attacked", lambda row: "; ".join(map(str, _list(row, "unusable"))) or NOTHING, "wide"),
)


def recording(study: Study, findings: Sequence[Finding]) -> Content | None:
    """Rounds of a recording, its verdict, never about what was not measured, and how guesses get scores; else None."""
    rows = _of(study, RECORDED)
    if not rows:
        return None
    verdict = _verdict(study, findings, rows)
    numbers = (row.extra.get("clients") for row in rows)
    clients = {str(key): str(node) for of in numbers if isinstance(of, dict) for key, node in of.items()}
    ordered = sorted(clients.items(), key=lambda item: (len(item[0]), item[0]))
    parts = (
        Markup("<p><b>{}</b></p>").format(verdict),
        Table("What the recording holds", HELD, rows),
        _unknown(rows),
        " ".join(f"Client {key} is node {node}." for key, node in ordered),
    )
    return Content(parts, " ".join((verdict, *_texts(rows, "warnings"))), _steps(rows))


def audited_app(study: Study, _: Sequence[Finding]) -> Content | None:
    """What could not be known; None for other studies."""
    rows = _of(study, ASSUMED)
    if not rows:
        return None
    return Content([_unknown(rows)], " ".join(_texts(rows, "warnings")))


def _unknown(rows: Iterable[Row]) -> Markup:
    items = Markup("").join(Markup("<li>{}</li>\n").format(text) for text in _texts(rows, "assumed"))
    return Markup("<h3>What could not be known</h3>\n<ul>\n{}</ul>").format(items)


def _of(study: Study, metric: str) -> list[Row]:
    return sorted((row for row in study.rows if row.metric == metric), key=lambda row: row.round)


def _texts(rows: Iterable[Row], key: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(str(text) for row in rows for text in _list(row, key)))


def _list(row: Row, key: str) -> list[Any]:
    found = row.extra.get(key)
    return found if isinstance(found, list) else []


def _ends(row: Row, key: str) -> str:
    """The least and the most of numbers, as "6 to 9"."""
    numbers = [int(one) for one in _list(row, key) if isinstance(one, int | float)] or [0]
    return " to ".join(map(str, dict.fromkeys((min(numbers), max(numbers)))))


def _steps(rows: Iterable[Row]) -> tuple[tuple[str, str], ...]:
    pairs = next((found for row in rows if (found := _list(row, "steps"))), [])
    return tuple((str(one[0]), str(one[1])) for one in pairs if isinstance(one, list) and len(one) == 2)


def _verdict(study: Study, findings: Sequence[Finding], rows: Sequence[Row]) -> str:
    if not any(row.extra.get("scored") is True for row in rows):
        attacked = sum(row.n for row in rows)
        replies = "1 reply" if attacked == 1 else f"{attacked} replies"
        return (
            f"No guess was scored: the true images were not given (originals). The attacks ran on {replies}. Guesses of images are "
            "among the pictures below, if an attack made any. Only the people who hold the data can tell whether a guess shows an "
            "image of theirs."
        )
    judged = [(cell, one.verdict_of(cell)) for of in findings for one in of.messages for cell in one.cells]
    if found := [f"{cell.attack} in round {cell.round}" for cell, verdict in judged if verdict in LEAKS]:
        return f"{'; '.join(dict.fromkeys(found))} found images of these updates."
    of_images = [cell.psnr for cell, _ in judged if cell.psnr]
    if of_images and all(score.attacked < LEAST_IMAGES for score in of_images):
        return "Under-powered: too few images for a verdict."
    why = dict.fromkeys(one.reason for one in study.controls if one.row.metric == IDENTIFIED.name and one.reason)
    reasons, failed = f" ({'; '.join(why)})" if why else "", "these attacks, with these settings, fail"
    return f"Not validated: no attack here found these images{reasons}. That shows only that {failed}."


SECTION = (
    Section(
        "audited",
        "The app",
        audited_app,
        text="A Flower app with training code of its own, whose clients answer probes and score guesses.",
        metrics=(ASSUMED, CLAIMED, REPORTED),
    ),
    Section(
        "recorded",
        "The recording",
        recording,
        text="""Replies of the clients of a Flower app, as they reached the server. The clients answered no probe and scored no
        guess.""",
        metrics=(RECORDED,),
    ),
)
