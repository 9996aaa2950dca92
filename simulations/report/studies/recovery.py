"""The rule for a recovered image, which every count of recovered images on every page follows."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from attacks.metrics.images import PSNR, RETRIEVAL
from attacks.metrics.images import RECOVERED as RECOVERED_METRIC
from attacks.scoring.roc import binomial_interval
from clients.scoring.null_baselines import CLASS_MEAN
from simulations.report.studies.baselines import ON_NOISE, NoiseControl, Nulls, audit_of, unjudged
from simulations.report.studies.rows import number_in
from simulations.run_folder.rows import Row
from strategies.audit.score_rows import PICKED_DETAIL, PICKED_GAIN, PICKED_PSNR, rounded_gain

LEAST_GAIN = 3.0
"""dB above the best null baseline from which on an identified image counts as recovered: half of that baseline's squared error."""
RECOVERED = RECOVERED_METRIC.of("original")
"""Metric and reference of the share of recovered images, which the report derives from each row of retrieval."""
BEST_GAIN, BEST_PSNR, BEST_DETAIL = "best_gain", "best_psnr", "best_detail"
"""Keys under which a row of that share holds gain, PSNR and detail of its best-recovered image, in dB."""
DETAILED = "detailed"
"""Key under which it holds how many of the recovered images lie above their own mean colour."""
DEFINITION = (
    "An image counts as recovered by an attack when the attack's guess identifies it among 100 candidates (fewer where the client "
    f"has fewer) and its PSNR lies at least {LEAST_GAIN:g} dB above the best null baseline for that image."
)
"""As pages state it."""


@dataclass(frozen=True)
class BestImage:
    """A recovered image.

    Attributes:
        gain: PSNR over the best null baseline for that image, in dB.
        psnr: Its PSNR, in dB.
        detail: PSNR over the image's own mean colour, in dB; None where no client reported it.
    """

    gain: float
    psnr: float
    detail: float | None = None

    @property
    def rank(self) -> tuple[float, float]:
        """Rank of recovery, larger is better; gain alone would rank flat images first, whose colour is all there is to guess."""
        return self.gain if self.detail is None else min(self.gain, self.detail), self.psnr


def with_recovered(rows: Sequence[Row]) -> list[Row]:
    """The rows of one adversary, with the share of recovered images behind each row of retrieval that reports it.

    Null baselines have none, for no guess lies above itself. The mean of the class, which is a scale, has one. An attack whose
    guess from noise is a success (``NoiseControl.success``) recovers nothing: its images come from its prior.
    """
    nulls, noise = Nulls(rows), NoiseControl(rows)
    psnr = {_place(row): row for row in rows if (row.metric, row.reference) == PSNR.of("original")}
    found: list[Row] = []
    for row in rows:
        found.append(row)
        if row.metric == RETRIEVAL.name and (row.is_attack or (row.role, row.attack) == CLASS_MEAN):
            own = psnr.get(_place(row))
            gains = None if own is None or unjudged(row) else _gains(row, own, nulls)
            if own is None or gains is None:
                continue
            found.append(_counted(row, [] if noise.success(own) else gains))
    return found


def is_recovered(psnr: float | None, null: float | None, identified: Any) -> bool:
    """The rule for one image: its PSNR, that of the best null baseline for it, and whether it was identified."""
    if psnr is None or null is None or identified != 1:
        return False
    return rounded_gain(psnr - null) >= LEAST_GAIN  # as rows hold it, so that rows and pictures count the same images


def chance_of_as_many(share: float, tried: Sequence[tuple[int, float]]) -> float:
    """An upper bound on the chance that the best of several null guesses recovers as large a share of its images.

    A null guess identifies an image with probability ``chance`` at most, so that one of them recovers as many with the upper tail
    of the binomial distribution. The best of several does with at most the sum of their chances (union bound): attacks guess the
    same images, so that their guesses need not be independent.

    Args:
        share: That the strongest attack recovered.
        tried: Of each attack and round that the maximum was taken over: how many images it attacked, and the chance of identifying
            one without an observation.
    """
    from scipy.stats import binom

    # Without the margin a share of 7/16 times 16 may be a little more than 7.
    tails = (binom.sf(math.ceil(share * images - 1e-9) - 1, images, chance) for images, chance in tried)
    return min(1.0, float(sum(tails)))


def best_image(rows: Sequence[Row]) -> BestImage | None:
    """The best-recovered image in rows of ``RECOVERED``; None where no image is, or rows do not report single images."""
    numbers = [[_number(row.extra.get(key)) for key in (BEST_GAIN, BEST_PSNR, BEST_DETAIL)] for row in rows]
    known = [BestImage(gain, psnr, detail) for gain, psnr, detail in numbers if gain is not None and psnr is not None]
    return max(known, key=lambda one: one.rank, default=None)


def detailed(rows: Sequence[Row]) -> int | None:
    """Number of recovered images above their own mean colour, from rows of ``RECOVERED``; None where a row does not report it."""
    counts = [_number(row.extra.get(DETAILED)) for row in rows]
    known = [int(one) for one in counts if one is not None]
    return sum(known) if rows and len(known) == len(counts) else None


def _place(row: Row) -> tuple[Any, ...]:
    """The guesses that a row is about."""
    return (audit_of(row), row.defense, row.role, row.attack, row.client, row.card.images, row.card.local_steps)


def _gains(row: Row, own: Row, nulls: Nulls) -> list[BestImage] | None:
    """Gain and PSNR of each identified image; None where it is not known.

    Rows of clients that report no null baseline for single images have the mean of the best one. Rows without single images
    count all identified ones where the attack as a whole lies as far above its baselines; else it is not known.
    """
    values, gains, bars = _numbers(row.extra.get(PICKED_PSNR)), _numbers(row.extra.get(PICKED_GAIN)), nulls.of(own)
    if values is None:
        return None if PICKED_PSNR in row.extra else _without_single_images(row, own, bars)
    if gains is not None and len(gains) == len(values):
        of_noise = bars.get(ON_NOISE, -math.inf)
        detail: Sequence[float | None] = _numbers(row.extra.get(PICKED_DETAIL)) or []
        if len(detail) != len(values):  # rows of clients that do not report it
            detail = [None] * len(values)
        found = zip(values, gains, detail, strict=True)
        return [BestImage(min(gain, psnr - of_noise), psnr, own) for psnr, gain, own in found]
    return [BestImage(psnr - max(bars.values()), psnr) for psnr in values] if bars else None


def _without_single_images(row: Row, own: Row, bars: Mapping[str, float]) -> list[BestImage] | None:
    if row.value is None or not 0 <= row.value <= 1:
        return None
    hits = round(row.value * row.n)
    if hits and (own.value is None or not bars or own.value - max(bars.values()) < LEAST_GAIN):
        return None
    return [BestImage(math.inf, math.inf)] * hits


def _counted(row: Row, gains: Sequence[BestImage]) -> Row:
    recovered = [one for one in gains if one.gain >= LEAST_GAIN][: row.n]
    best = max(recovered, key=lambda one: one.rank, default=None)
    extra: dict[str, Any] = {}
    if best and math.isfinite(best.gain):
        extra = {BEST_GAIN: best.gain, BEST_PSNR: best.psnr}
    details = [one.detail for one in recovered if one.detail is not None]
    if best and best.detail is not None and len(details) == len(recovered):
        extra |= {BEST_DETAIL: best.detail, DETAILED: sum(one > 0 for one in details)}
    share, low, high = binomial_interval(len(recovered), row.n) if row.n else (None, None, None)
    return replace(
        row, metric=RECOVERED[0], reference=RECOVERED[1], value=share, ci_low=low, ci_high=high, worst=None, extra=extra
    )


def _number(value: Any) -> float | None:
    number = number_in(value)
    return number if number is not None and math.isfinite(number) else None


def _numbers(values: Any) -> list[float] | None:
    """A list of finite numbers, or None."""
    return values if isinstance(values, list) and all(_number(one) is not None for one in values) else None
