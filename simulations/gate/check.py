"""One limit of a gate beside what was measured: passed, failed or undecided, by the interval."""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from attacks.scoring.intervals import exact_interval
from simulations.report.studies.score import Score
from simulations.report.text import count, percent, percentage

NONE_FOUND = 0.05
"""A limit of 0 asks that nothing is found among so many images that this share is excluded: none shows a share of exactly 0."""
MOST_MORE = 1_000_000
"""Images beyond which no number is named."""


class Outcome(StrEnum):
    """Of a limit, or of a gate; the worst comes first."""

    FAILED = "failed"
    UNDECIDED = "undecided"
    PASSED = "passed"


EXIT = {Outcome.PASSED: 0, Outcome.FAILED: 1, Outcome.UNDECIDED: 5}


@dataclass(frozen=True)
class Check:
    """A limit beside its measurement.

    Attributes:
        limit: Key of the limit; "" of what must hold for any gate to pass.
        of: What was measured: a message's title, or the study and defence.
        outcome: Whether it holds.
        said: The measurement, and why it does not decide, in words.
        value: Measured; None where nothing was.
        low: Lower end of the 95 % interval, as ``high`` is the upper one; None without one.
        allowed: The limit's value; None where there is none.
        more: So many more images would decide if they show the same share; None where no number is known to.
    """

    limit: str
    of: str
    outcome: Outcome
    said: str
    value: float | None = None
    low: float | None = None
    high: float | None = None
    allowed: float | None = None
    more: int | None = None

    @property
    def title(self) -> str:
        """What was measured, and the limit on it."""
        return ": ".join(filter(None, (self.of, self.limit)))

    @property
    def text(self) -> str:
        """What was measured, the limit and the measurement in a line."""
        allowed = "" if self.allowed is None else f" {self.allowed:g}"
        return f"{self.title}{allowed}: {self.said}"

    def to_json(self) -> dict[str, Any]:
        """For programs."""
        return {**asdict(self), "outcome": self.outcome.value}


def worst(checks: list[Check]) -> Outcome:
    """The gate's outcome: it passes where every check does, and fails where one does."""
    return min((check.outcome for check in checks), key=list(Outcome).index)


def most(
    limit: str, of: str, allowed: float, score: Score, what: str, *, n: int, certain: bool, why: str = ""
) -> Check:
    """A share that must stay below a limit.

    Args:
        limit: Key of the limit.
        of: What was measured.
        allowed: The limit.
        score: The share, with its interval.
        what: Noun behind the numbers, such as "images".
        n: Records of the share.
        certain: Where the limit is 0, whether what was found is more than chance gives.
        why: Why the measurement may not pass; "" where it may.
    """
    mean, ends = score.mean or 0.0, score.within(percentage)
    found = f"{percent(mean)} of {count(n, what)}" + (f" ({ends} %)" if ends else "")
    entry: dict[str, Any] = {"value": mean, "low": score.low, "high": score.high, "allowed": allowed}
    low, high = score.ends or (0.0, 1.0)
    if certain if allowed == 0 else low > allowed:
        return Check(limit, of, Outcome.FAILED, found, **entry)
    if why:
        return Check(limit, of, Outcome.UNDECIDED, f"{found}: {why}", **entry)
    if _below(allowed, mean, high):
        return Check(limit, of, Outcome.PASSED, found, **entry)
    further = more(score, n, lambda low, high: low > allowed > 0 or _below(allowed, mean, high))
    return Check(limit, of, Outcome.UNDECIDED, f"{found}: {enough(further, what)}", **entry, more=further)


def least(limit: str, of: str, allowed: float, score: Score) -> Check:
    """A share of the test images that must lie above a limit."""
    mean, ends = score.mean or 0.0, score.within(percentage)
    entry: dict[str, Any] = {"value": mean, "low": score.low, "high": score.high, "allowed": allowed}
    said = f"{percent(mean)} of {count(score.n, 'test image')}" + (f" ({ends} %)" if ends else "")
    if score.ends is None or score.low is None or score.high is None:
        return Check(limit, of, Outcome.UNDECIDED, f"{said}: no interval", **entry)
    if score.high < allowed:
        return Check(limit, of, Outcome.FAILED, said, **entry)
    if score.low > allowed:
        return Check(limit, of, Outcome.PASSED, said, **entry)
    further = more(score, score.n, lambda low, high: high < allowed or low > allowed)
    return Check(limit, of, Outcome.UNDECIDED, f"{said}: {enough(further, 'test image')}", **entry, more=further)


def _below(allowed: float, mean: float, high: float) -> bool:
    return high < allowed if allowed else mean == 0 and high <= NONE_FOUND


def enough(further: int | None, what: str) -> str:
    """What would decide."""
    if further is None:
        return f"no number of {what}s would decide if the share stays"
    return f"not enough {what}s: {further:,} more would decide if the share stays"


def more(score: Score, n: int, decides: Callable[[float, float], bool]) -> int | None:
    """How many more records than n would make an exact interval decide if they have the same share; None above ``MOST_MORE``.

    Records that tell less than independent ones, such as images of one message, are taken to tell as much less in a larger number.
    """
    share = score.mean or 0.0
    each = _told(share, *(score.ends or (0.0, 1.0))) / n if n else 1.0

    def decided(records: int) -> bool:
        estimate = exact_interval(share * records * each, records * each)
        return decides(estimate.low, estimate.high)

    few, many = n, max(2 * n, 2)
    while not decided(many):
        few, many = many, 2 * many
        if many > MOST_MORE + n:
            return None
    while many - few > 1:
        middle = (few + many) // 2
        few, many = (few, middle) if decided(middle) else (middle, many)
    return many - n


def _told(share: float, low: float, high: float) -> float:
    """So many independent records have this exact interval: with its upper end, or with its lower one where that is 1."""
    few, many = 1e-3, float(MOST_MORE)
    for _ in range(100):
        middle = (few * many) ** 0.5
        estimate = exact_interval(share * middle, middle)
        wider = estimate.high > high if high < 1 else estimate.low < low
        few, many = (middle, many) if wider else (few, middle)
    return many
