"""One number over several seeds: mean, interval, worst case and failures."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from attacks.metrics.metric import Interval, Metric, OverSeeds, Values
from attacks.metrics.registry import metric_of
from attacks.metrics.training import TEST_ACCURACY
from attacks.scoring.intervals import binomial_interval, clustered_interval
from simulations.report.studies.intervals import Range, in_messages, interval, wilson
from simulations.report.studies.messages import by_message, each_image
from simulations.report.studies.rows import grouped
from simulations.report.text import within
from simulations.run_folder.rows import Row
from strategies.audit.score_rows import worst_of

PARTLY_FAILED = "partly failed"
"""Status of a score that some seeds or clients could not give."""
Scored = tuple[str, str]
"""What a score is of: its metric and its reference."""


@dataclass(frozen=True)
class Score:
    """One metric, averaged over seeds.

    Attributes:
        mean: Mean over seeds; None when no seed has a number.
        low: Lower end of the 95 % interval. Of one row it is its own, or Wilson's of ``Values.HIT`` and of a test accuracy
            without one. Over seeds it is Student's t, of shares ``clustered_interval``, of areas under curves never narrower than
            the seeds' own on average. With ``Interval.EXACT`` or ``OverSeeds.EXACT`` it is Clopper-Pearson's, or ``in_messages``
            where several images were in one message.
        high: Upper end of that interval.
        worst: The worst example of any seed.
        n: Examples over all seeds; test images of several seeds are the same ones, and count once for each.
        attacked: The same with examples that were attacked and not scored (``attacked``).
        unscored: Examples whose client sent no usable score.
        failures: Failed trials over all seeds.
        messages: Messages that the images were in, where these are fewer than images and rows say which; else None.
        by_seed: Seed -> mean, of the seeds that have a number.
        status: "failed" if no seed has a number, "partly failed" if some have none (the mean leaves them out),
            "not-validated" if any seed is, else "under-powered" if any is, else "ok".
    """

    mean: float | None
    low: float | None = None
    high: float | None = None
    worst: float | None = None
    n: int = 0
    attacked: int = 0
    unscored: int = 0
    failures: int = 0
    messages: int | None = None
    by_seed: Mapping[int, float] = field(default_factory=dict)
    status: str = "ok"

    @property
    def ends(self) -> tuple[float, float] | None:
        """The interval; None without one."""
        return None if self.low is None or self.high is None else (self.low, self.high)

    def within(self, show: Callable[[float | None], str]) -> str:
        """The interval in words; "" without one."""
        return within(self.low, self.high, show)


def merge(rows: Sequence[Row], *, ends: bool = True) -> Score:
    """The score of rows of one metric, without ``ends`` without its interval; rows of one seed (clients) are averaged first."""
    metric = metric_of(rows[0].metric)
    used = [row for row in rows if row.value is not None and row.status != "failed"]
    by_seed = grouped(used, lambda row: row.seed)
    means = {seed: _combine(metric, [_value(metric, row) for row in by_seed[seed]]) for seed in sorted(by_seed)}
    failed = any(row.status == "failed" for row in rows)
    mean, low, high, messages = _estimate(metric, list(means.values()), used if ends else ())
    return Score(
        mean=mean,
        low=low,
        high=high,
        worst=worst_of(metric, [row.worst for row in used if row.worst is not None]),
        n=sum(row.n for row in used),
        attacked=sum(map(attacked, used)),
        unscored=sum(row.of_clients.unscored for row in used),
        failures=sum(row.failures for row in rows),
        messages=messages,
        by_seed=means,
        status=_status(used) if not failed else PARTLY_FAILED if means else "failed",
    )


def _estimate(
    metric: Metric, means: Sequence[float], rows: Sequence[Row]
) -> tuple[float | None, float | None, float | None, int | None]:
    """Mean of the seeds' means, its interval, and the number of messages where images share them."""
    if not means or not rows or metric.values is Values.BOUND:
        return (_combine(metric, means) if means else None), None, None, None
    if metric.over_seeds is OverSeeds.EXACT or (metric.interval is Interval.EXACT and len(means) == 1):
        messages = by_message(each_image(rows).values())
        if 0 < len(messages) < sum(row.n for row in rows):
            return *in_messages(messages), len(messages)
        if estimate := exact(rows):
            return *estimate, None
    ends = _over_seeds(metric, means, rows) if len(means) > 1 else _own_interval(metric, rows)
    return _combine(metric, means), *ends, None


def exact(rows: Sequence[Row]) -> tuple[float, float, float] | None:
    """The share of ones over all images of the rows, with its exact 95 % interval; None unless all are shares of images.

    Queries are asked about the same test images whatever the seed is: those of several seeds are no more images. Seeds are then
    clusters of at most as many trials as there are images (``clustered_interval``).
    """
    if not rows or any(row.value is None or not 0 <= row.value <= 1 <= row.n for row in rows):
        return None
    seeds = grouped(rows, lambda row: row.seed).values()
    counts = [(sum(round((row.value or 0.0) * row.n) for row in of), sum(row.n for row in of)) for of in seeds]
    if len(counts) > 1 and all(map(same_images, rows)):
        trials = max(n for _, n in counts)
        return clustered_interval([hits / n for hits, n in counts], trials) if trials >= len(counts) else None
    return binomial_interval(sum(hits for hits, _ in counts), sum(n for _, n in counts))


def attacked(row: Row) -> int:
    """The examples behind a row, with those whose client sent no usable score; these count for half of the others at most."""
    return row.n + max(0, min(row.of_clients.unscored, row.n // 2))


def same_images(row: Row) -> bool:
    """Whether every seed has the row's number on the same images, which are then no more images with more seeds."""
    return row.metric == TEST_ACCURACY.name or row.card.observation in ("queries", "attributes of queries")


def _value(metric: Metric, row: Row) -> float:
    bound = row.worst if metric.values is Values.BOUND else None
    return bound if bound is not None else row.value or 0.0


def _over_seeds(metric: Metric, means: Sequence[float], rows: Sequence[Row]) -> Range:
    """The interval of the mean over seeds; of shares and areas one within [0, 1], which has a width where all seeds agree."""
    within = all(0 <= mean <= 1 for mean in means)
    by_seed = [sum(row.n for row in of) for of in grouped(rows, lambda row: row.seed).values()]
    trials = max(by_seed) if all(map(same_images, rows)) else sum(by_seed)
    if metric.over_seeds is OverSeeds.CLUSTERED and trials >= len(means) and within:
        return clustered_interval(means, trials)[1:]
    low, high = interval(means)
    if metric.over_seeds is not OverSeeds.AREA or not within or low is None or high is None:
        return low, high
    own = [(row.ci_low, row.ci_high) for row in rows if row.ci_low is not None and row.ci_high is not None]
    if own:
        # Seeds that test the same records say nothing of other records, however well they agree.
        low, high = min(low, sum(a for a, _ in own) / len(own)), max(high, sum(b for _, b in own) / len(own))
    return max(low, 0.0), min(high, 1.0)


def _own_interval(metric: Metric, rows: Sequence[Row]) -> Range:
    if len(rows) != 1:
        return None, None
    (row,) = rows
    share = metric.values is Values.HIT or (metric is TEST_ACCURACY and row.ci_low is None)
    if share and row.value is not None and 0 <= row.value <= 1 <= row.n:
        return wilson(row.value, row.n)
    return row.ci_low, row.ci_high


def _status(rows: Sequence[Row]) -> str:
    unusual = [row.status for row in rows if row.status != "ok"]
    return "not-validated" if "not-validated" in unusual else unusual[0] if unusual else "ok"


def _combine(metric: Metric, values: Sequence[float]) -> float:
    if metric.values is Values.BOUND:
        return max(values)
    return math.fsum(values) / len(values) if all(map(math.isfinite, values)) else sum(values)
