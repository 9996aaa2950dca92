"""The report's sections on an external Flower app: a recorded one, or one whose clients answer probes and score guesses."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from markupsafe import Markup

from attacks.metrics.images import IDENTIFIED
from attacks.metrics.metric import LEAST_IMAGES
from simulations.report.analysis.finding import Finding
from simulations.report.analysis.message import LEAKS
from simulations.report.columns import Column, Table, number
from simulations.report.section import Content, Section
from simulations.report.studies.study import Study
from simulations.run_folder.rows import Row
from strategies.external_app.claim import CLAIMED, REPORTED
from strategies.external_app.trainings import ASSUMED

RECORDED = "recorded-updates"
"""Metric of the row of each recorded round, whose further columns are read here."""


@dataclass(frozen=True)
class Told:
    """Columns of rows of ``RECORDED`` and ``ASSUMED``.

    Attributes:
        clients: Client -> its node.
        examples: Behind each reply; ``local_steps``: of each.
        unusable: Why replies were not attacked.
        assumed: What could not be known.
        scored: The true images were given.
        steps: (What to do for scores, lines of code or commands).
    """

    clients: Mapping[str, str] = field(default_factory=dict)
    examples: tuple[int, ...] = ()
    local_steps: tuple[int, ...] = ()
    unusable: tuple[str, ...] = ()
    assumed: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    scored: bool = False
    steps: tuple[tuple[str, str], ...] = ()


HELD = (
    Column("Round", lambda of: of[0].round),
    number("replies attacked", lambda of: of[0].n).opening,
    number("examples behind a reply", lambda of: _ends(of[1].examples)),
    number("local steps", lambda of: _ends(of[1].local_steps)),
    Column("not attacked", lambda of: "; ".join(of[1].unusable) or None, "wide").opening,
)


def recording(study: Study, findings: Sequence[Finding]) -> Content | None:
    """Rounds of a recording, its verdict, never about what was not measured, and how guesses get scores; else None."""
    rows = _of(study, RECORDED)
    if not rows:
        return None
    told = [facts for _, facts in rows]
    verdict = _verdict(study, findings, rows)
    clients = {key: node for facts in told for key, node in facts.clients.items()}
    ordered = sorted(clients.items(), key=lambda item: (len(item[0]), item[0]))
    parts = (
        Markup("<p><b>{}</b></p>").format(verdict),
        Table("What the recording holds", HELD, rows),
        _unknown(told),
        " ".join(f"Client {key} is node {node}." for key, node in ordered),
    )
    steps = next((facts.steps for facts in told if facts.steps), ())
    return Content(parts, " ".join((verdict, *_warnings(told))), steps)


def audited_app(study: Study, _: Sequence[Finding]) -> Content | None:
    """What could not be known; None for other studies."""
    told = [facts for _, facts in _of(study, ASSUMED)]
    return Content([_unknown(told)], " ".join(_warnings(told))) if told else None


def _unknown(told: Iterable[Told]) -> Markup:
    texts = dict.fromkeys(text for facts in told for text in facts.assumed)
    items = Markup("").join(Markup("<li>{}</li>\n").format(text) for text in texts)
    return Markup("<h3>What could not be known</h3>\n<ul>\n{}</ul>").format(items)


def _warnings(told: Iterable[Told]) -> Iterable[str]:
    return dict.fromkeys(text for facts in told for text in facts.warnings)


def _of(study: Study, metric: str) -> list[tuple[Row, Told]]:
    rows = sorted((row for row in study.rows if row.metric == metric), key=lambda row: row.round)
    return [(row, row.read(Told)) for row in rows]


def _ends(numbers: Sequence[int]) -> str:
    """The least and the most of numbers, as "6 to 9"."""
    return " to ".join(map(str, dict.fromkeys((min(numbers), max(numbers))))) if numbers else "0"


def _verdict(study: Study, findings: Sequence[Finding], rows: Sequence[tuple[Row, Told]]) -> str:
    if not any(facts.scored for _, facts in rows):
        attacked = sum(row.n for row, _ in rows)
        replies = "1 reply" if attacked == 1 else f"{attacked} replies"
        return (
            f"No guess was scored: the true images were not given (originals). The attacks ran on {replies}. Guesses of images are "
            "among the pictures below, if an attack made any. Only the people who hold the data can tell whether a guess shows an "
            "image of theirs."
        )
    judged = [(cell, message.verdict_of(cell)) for of in findings for message in of.messages for cell in message.cells]
    if attacks := [f"{cell.attack} in round {cell.round}" for cell, verdict in judged if verdict in LEAKS]:
        return f"{'; '.join(dict.fromkeys(attacks))} found images of these updates."
    of_images = [cell.psnr for cell, _ in judged if cell.psnr]
    if of_images and all(score.attacked < LEAST_IMAGES for score in of_images):
        return "Under-powered: too few images for a verdict."
    why = dict.fromkeys(test.reason for test in study.controls if test.row.metric == IDENTIFIED.name and test.reason)
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
