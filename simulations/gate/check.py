"""One limit of a gate beside what was measured: passed, failed or undecided, by the interval."""

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum

from attacks.scoring.intervals import exact_interval
from simulations.report.studies.intervals import few_messages
from simulations.report.studies.score import Score
from simulations.report.text import count, percent, percentage

NONE_FOUND = 0.05
"""A limit of 0 asks that nothing is found among so many images that this share is excluded: none shows a share of exactly 0."""
MOST_MORE = 1_000_000
"""Images beyond which no number is named."""


class Decision(StrEnum):
    """Of a limit, or of a gate; the worst comes first."""

    FAILED = "failed"
    UNDECIDED = "undecided"
    PASSED = "passed"


EXIT = {Decision.PASSED: 0, Decision.FAILED: 1, Decision.UNDECIDED: 5}


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
    outcome: Decision
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


def worst(checks: list[Check]) -> Decision:
    """The gate's outcome: it passes where every check does, and fails where one does."""
    return min((check.outcome for check in checks), key=list(Decision).index, default=Decision.UNDECIDED)


def most(
    limit: str,
    of: str,
    allowed: float,
    score: Score,
    what: str,
    *,
    n: int,
    certain: bool,
    chance: float = 0.0,
    why: str = "",
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
        chance: Share that chance gives: of a limit above 0, more than it must be found to break it.
        why: Why the measurement may not pass; "" where it may.
    """
    mean = score.mean or 0.0

    def passes(_: float, high: float) -> bool:
        return high < allowed or allowed == 1 if allowed else mean == 0 and high <= NONE_FOUND

    def fails(low: float, _: float) -> bool:
        return low > max(allowed, chance) if allowed else certain

    return _held(limit, of, allowed, score, what, n, passes, fails, why)


def least(limit: str, of: str, allowed: float, score: Score) -> Check:
    """A share of the test images that must lie above a limit."""
    why = "" if score.ends and score.status == "ok" else "no interval of all seeds"
    shown = replace(score, low=None, high=None) if why else score

    def passes(low: float, _: float) -> bool:
        return low > allowed

    def fails(_: float, high: float) -> bool:
        return high < allowed

    # Several seeds test the same images, which are no more with more seeds.
    return _held(limit, of, allowed, shown, "test image", score.n, passes, fails, why, grows=len(score.by_seed) < 2)


def _held(
    limit: str, of: str, allowed: float, score: Score, what: str, n: int,
    passes: Callable[[float, float], bool], fails: Callable[[float, float], bool], why: str, grows: bool = True,
) -> Check:  # fmt: skip
    """A share decided by the ends of its interval; ``why`` keeps it from passing."""
    mean, (low, high), further = score.mean or 0.0, score.ends or (0.0, 1.0), None
    ends = score.within(percentage)
    said = f"{percent(mean)} of {count(n, what)}" + (f" ({ends} %)" if ends else "")
    if not low <= mean <= high:
        outcome, why = Decision.UNDECIDED, "its interval is not one of this share"
    elif fails(low, high):
        outcome, why = Decision.FAILED, ""
    elif why:
        outcome = Decision.UNDECIDED
    elif passes(low, high):
        outcome = Decision.PASSED
    else:
        if grows:
            further = more(score, n, lambda low, high: passes(low, high) or (allowed > 0 and fails(low, high)))
        some = "and no number of more is known that would decide"
        some = some if further is None else f"about {further:,} more would decide if the share stays"
        outcome, why = Decision.UNDECIDED, f"not enough {what}s{',' if further is None else ':'} {some}"
    said = ": ".join(filter(None, (said, why)))
    return Check(limit, of, outcome, said, mean, score.low, score.high, allowed, further)


def more(score: Score, n: int, decides: Callable[[float, float], bool]) -> int | None:
    """How many more records than n would make an exact interval decide if they have the same share; None above ``MOST_MORE``.

    They come in messages of as many images as now, which depend on each other as much (``in_messages``). Of a share between 0 and 1
    the number decides in about half of all cases, as the next share is not the same.
    """
    share, messages = score.mean or 0.0, score.messages
    each = effective_size(share, *(score.ends or (0.0, 1.0))) / n if n else 1.0
    step = n // messages if messages else 1

    def decided(further: int) -> bool:
        records = n + further
        few = few_messages(records, messages * records / n) / few_messages(n, messages) if messages else 1.0
        estimate = exact_interval(share * records * each * few, records * each * few)
        return decides(estimate.low, estimate.high)

    numbers = range(step, MOST_MORE, step)
    at = bisect_left(numbers, True, key=decided)
    return numbers[at] if at < len(numbers) else None


def effective_size(share: float, low: float, high: float) -> float:
    """So many independent records have this exact interval: with its upper end, or with its lower one where that is 1."""
    few, many = 1e-3, float(MOST_MORE)
    for _ in range(100):
        middle = (few * many) ** 0.5
        estimate = exact_interval(share * middle, middle)
        wider = estimate.high > high if high < 1 else estimate.low < low
        few, many = (middle, many) if wider else (few, middle)
    return many
