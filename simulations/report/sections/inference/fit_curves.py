"""Charts of a defence while it learns: the answers and a static adversary over epochs, or over components."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from attacks.metrics.training import (
    MASKED_ADVERSARY_ACCURACY,
    MASKED_SERVER_ACCURACY,
    MASKED_SHARE,
    PATH_ADVERSARY_ACCURACY,
    PATH_SERVER_ACCURACY,
)
from simulations.report import text
from simulations.report.drawing.figures import Across, Point, curves, share_bounds
from simulations.report.drawing.looks import Look
from simulations.report.studies.rows import grouped
from simulations.report.studies.score import Score, merge
from simulations.report.studies.study import Study
from simulations.run_folder.rows import Row

LOOKS = {
    PATH_SERVER_ACCURACY.name: Look("server", "var(--d0)", "circle"),
    PATH_ADVERSARY_ACCURACY.name: Look("adversary", "var(--d1)", "square"),
}
MASKED = {MASKED_SHARE: "share", MASKED_SERVER_ACCURACY: "server", MASKED_ADVERSARY_ACCURACY: "adversary"}
"""Of what a delta autoencoder learns to imitate, on the same images: metric -> its name in ``FitCurve.masked``."""
WIDTH = 350.0
Metrics = dict[str, dict[int | None, Score]]
"""Metric -> position on the axis (None: without protection) -> score."""
DOUBLING = "components"
"""The axis that is drawn by its logarithm, as in the paper's Figure 6."""


@dataclass(frozen=True)
class FitCurve:
    """One chart.

    Attributes:
        defense: Pipeline text.
        unprotected: "server" and "adversary" -> accuracy on unprotected features of the same images, in words.
        masked: "share", "server" and "adversary" -> share of an image that is masked and accuracies on these masked images, in
            words; empty where nothing is masked.
        drawing: The chart.
    """

    defense: str
    unprotected: dict[str, str]
    masked: dict[str, str]
    drawing: Markup


def fit_curves(study: Study) -> tuple[FitCurve, ...]:
    """A chart for each defence with rows of its path; all share one axis of accuracy."""
    groups = grouped((row for row in study.rows if row.metric in LOOKS and not row.attack), lambda row: row.defense)
    merged = {
        defense: {metric: _merged(rows) for metric, rows in grouped(of, lambda row: row.metric).items()}
        for defense, of in groups.items()
    }
    every = [s for metrics in merged.values() for of in metrics.values() for s in of.values() if s.mean is not None]
    domain = share_bounds([end for score in every for end in (score.mean, score.low, score.high)], least=0.1)
    axes = {
        of: next((str(row.extra["axis"]) for row in rows if row.extra.get("axis")), "") for of, rows in groups.items()
    }
    order = sorted(merged, key=study.pipelines.index)
    return tuple(_curve(defense, merged[defense], axes[defense], domain, _masked(study, defense)) for defense in order)


def _merged(rows: Sequence[Row]) -> dict[int | None, Score]:
    """Position on the axis -> score."""
    positions = ((row.extra.get("position"), row) for row in rows)
    known = grouped(positions, lambda one: one[0] if isinstance(one[0], int) else None)
    return {at: merge([row for _, row in of]) for at, of in known.items()}


def _curve(defense: str, metrics: Metrics, axis: str, domain: tuple[float, float], masked: dict[str, str]) -> FitCurve:
    doubling = axis == DOUBLING
    series: dict[str, Sequence[Point]] = {}
    for metric in LOOKS:
        points = [
            Point.of(
                math.log2(at) if doubling else at,
                score,
                f"{LOOKS[metric].name}, {at} {axis}: {text.percent(score.mean)}",
            )
            for at, score in sorted((at, score) for at, score in metrics.get(metric, {}).items() if at is not None)
            if score.mean is not None
        ]
        if points:
            series[metric] = points
    plain = {LOOKS[metric].name: text.percent(of[None].mean) for metric, of in metrics.items() if None in of}
    across = Across(
        axis.capitalize(),
        (lambda exponent: text.plain(round(2**exponent))) if doubling else text.plain,
        f"over {axis} of the fit",
    )
    drawing = curves(series, LOOKS, WIDTH, "Accuracy", text.whole_percent, (), domain, across=across)
    return FitCurve(defense, plain, masked, drawing)


def _masked(study: Study, defense: str) -> dict[str, str]:
    found = {}
    for metric, name in MASKED.items():
        if rows := [row for row in study.rows if row.metric == metric.name and row.defense == defense]:
            found[name] = text.percent(merge(rows).mean)
    return found
