"""Equation 1 of the delta protection paper, decided by intervals: the adversary must lose much more than the server half.

Source: Higgins et al., "Towards Privacy-Preserving Split Learning" (ADP), Eq. 1: S_alpha ~ S_beta, A_alpha >> A_beta and
|S_alpha - S_beta| << |A_alpha - A_beta|, with alpha before and beta after protection. It names no numbers; those here are ours.
"""

from dataclasses import replace

from simulations.report.studies.intervals import Change, paired_images, square_and_add
from simulations.report.studies.score import Score

LEAST_DROP = 0.1
"""What the adversary must lose at least for ">>", as a share: 10 percentage points."""
MOST_OF_DROP = 0.5
"""What the server half's difference may be at most for "<<", as a part of what the adversary loses."""
MARGIN = 0.04
"""What the server half's accuracy may change at most for "~": 4 percentage points, about what the paper's abstract reports."""
SATISFIED, NOT_SATISFIED, OPEN = "satisfied", "not satisfied", "undecided"


def difference(before: Score | None, after: Score | None) -> Change | None:
    """Before minus after, with the interval of ``square_and_add``; None where one has no interval."""
    if not (before and after and before.ends and after.ends) or before.mean is None or after.mean is None:
        return None
    ends = square_and_add((before.mean, *before.ends), (after.mean, *after.ends))
    return Change(before.mean - after.mean, *ends)


def answers_lost(server: tuple[Score | None, Score | None], lost: Score | None, gained: Score | None) -> Change | None:
    """Accuracy before minus after of the same images, with the paired interval; of several seeds from the mean table.

    ``lost`` and ``gained`` are the shares of images that are answered rightly before alone, and after alone; without them the
    pairs are not known, and the interval is the wider one of ``difference``.
    """
    if not (lost and gained and lost.n) or lost.mean is None or gained.mean is None:
        return difference(*server)
    n = images_of(lost)
    return paired_images(round(lost.mean * n), round(gained.mean * n), n)._replace(mean=lost.mean - gained.mean)


def images_of(score: Score) -> int:
    """Distinct images of a score over seeds, whose test images are the same."""
    return score.n // max(len(score.by_seed), 1)


def folded(score: Score) -> Score:
    """The share of right guesses of a binary value, or one minus it where that is larger."""
    if score.mean is None or score.mean >= 1 / 2:
        return score
    low, high = (None if end is None else 1 - end for end in (score.high, score.low))
    return replace(score, mean=1 - score.mean, low=low, high=high)


def least_before(images: int, null: float) -> float | None:
    """The least accuracy of an adversary before protection with which Equation 1 can be satisfied; None where none can.

    It is the one whose loss is at least ``LEAST_DROP`` with its whole interval if it reads no more after it than the null, the
    accuracy of always answering the most frequent value.
    """
    from attacks.scoring.intervals import binomial_interval

    after = Score(*binomial_interval(round(null * images), images))
    for hits in range(round(null * images), images + 1):
        drop = difference(Score(*binomial_interval(hits, images)), after)
        if drop is not None and drop.low >= LEAST_DROP:
            return hits / images
    return None


def decided(server: Change | None, adversary: Change | None) -> str:
    """``SATISFIED``, ``NOT_SATISFIED`` or ``OPEN``, by the losses of the server half and the adversary; the page says how."""
    if server is None or adversary is None:
        return OPEN
    least, most = sorted((abs(server.low), abs(server.high)))
    if adversary.low >= LEAST_DROP and most <= min(MARGIN, MOST_OF_DROP * adversary.low):
        return SATISFIED
    changed = not server.low <= 0 <= server.high and least > min(MARGIN, MOST_OF_DROP * adversary.high)
    return NOT_SATISFIED if adversary.high < LEAST_DROP or changed else OPEN
