"""What the report shows of edge-cloud inference: what the answers are worth, what travels, and what comes back out of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from simulations.report.analysis.score import Score
from simulations.report.analysis.study import Cell, Study
from simulations.report.analysis.summary import Line

OBSERVATION = "queries"
METRICS = (
    "queries",
    "query-bytes",
    "feature-bytes",
    "answer-bytes",
    "client-half-bytes",
    "query-seconds",
    "answer-seconds",
    "agreement",
)


@dataclass(frozen=True)
class Answered:
    """The queries under one defence, and their answers.

    Attributes:
        line: The defence's line of the summary.
        agreement: Share of test images whose answer is the one that plain features get.
        queries: Images of all clients that were asked about; of several seeds their mean, as all that follows.
        query_bytes: Bytes that travel for one image.
        answer_bytes: Bytes of its answer.
        smaller: Bytes of its plain features over those that travel.
        client_half_bytes: Bytes of the client half with what the defences have learned.
        query_seconds: Seconds that a client works for all of its queries.
    """

    line: Line
    agreement: Score | None
    queries: float | None
    query_bytes: float | None
    answer_bytes: float | None
    smaller: float | None
    client_half_bytes: float | None
    query_seconds: float | None


@dataclass(frozen=True)
class EdgeCloudInference:
    """The section: one entry for each defence, and one for each attack on the queries under it."""

    answered: tuple[Answered, ...]
    cells: tuple[Cell, ...]


def edge_cloud_inference(study: Study, lines: Sequence[Line]) -> EdgeCloudInference | None:
    """The section, or None for a study in which nobody asked anything."""
    if not any(row.metric == "query-bytes" for row in study.rows):
        return None
    cells = (cell for cell in study.cells if cell.observation == OBSERVATION and cell.psnr is not None)
    return EdgeCloudInference(tuple(_answered(study, line) for line in lines), tuple(cells))


def _answered(study: Study, line: Line) -> Answered:
    def told(metric: str) -> float | None:
        return study.over_rounds(line.defense, metric)

    travels, plain = told("query-bytes"), told("feature-bytes")
    return Answered(
        line=line,
        agreement=next(iter(study.series(line.defense, "agreement").values()), None),
        queries=told("queries"),
        query_bytes=travels,
        answer_bytes=told("answer-bytes"),
        smaller=plain / travels if plain and travels else None,
        client_half_bytes=told("client-half-bytes"),
        query_seconds=told("query-seconds"),
    )
