"""Sentences of a measured search, for its page and the terminal: its verdict on held-out images, and what limits it."""

from __future__ import annotations

import math
from collections.abc import Sequence

from simulations.report.studies.score import TAIL
from simulations.report.text import count
from simulations.search.measured.proposals import NONE, PAPER, SCORED
from simulations.search.measured.results import HybridResult, MeanInterval
from simulations.search.measured.search import Found
from simulations.search.measured.settings import Measured
from simulations.search.measured.verdict import LEVEL, Comparison, keeps, level_of, needed_controls


def headline(found: Found) -> str:
    """The recommended hybrid, or that there is none."""
    return found.recommended[0].outcome.hybrid if found.recommended else "No hybrid is recommended"


def verdict(found: Found) -> list[str]:
    """Sentences on each confirmed hybrid, with numbers of held-out images."""
    lines = []
    if found.held_out and not found.validated:
        lines.append(
            "The attack recovers fewer than half of the images without a defence: its failures say nothing of hybrids."
        )
    lines += [_verdict_on(found, one) for one in found.comparisons]
    compared = {one.outcome.hybrid for one in found.comparisons}
    lines += [_uncompared(found, hybrid) for hybrid in found.confirmed if hybrid not in compared]
    if not found.confirmed:
        lines.append(_nothing_confirmed(found))
    elif not found.comparisons and not found.skipped:
        lines.append("No hybrid was compared with random ones on held-out images.")
    if found.skipped:
        lines.append(_skipped(found))
    if found.failed:
        lines.append(f"{len(found.failed)} trainings on held-out images failed; the page lists them.")
    return lines


def about_candidates(found: Found) -> str:
    """How many hybrids the search chose among, by origin, and how many fewer these are than wanted."""
    search = found.search
    every = [one for one in found.chosen_among if one.origin not in (NONE, PAPER)]
    by_score = sum(one.origin == SCORED for one in every)
    sentences = []
    if wanted := search.by_score_wanted:
        sentences.append(
            f"S_pri of at most {search.to_score} random policies chose {count(by_score, 'candidate')}, of {wanted} wanted by score."
        )
    sentences.append(f"{count(len(every) - by_score, 'candidate')} came from random draws.")
    if len(every) < search.candidates:
        sentences.append(
            f"These are {len(every)} of {search.candidates} candidates: no more hybrids that alter images were found with "
            f"policies = {search.policies} and longest = {search.longest}."
        )
    return " ".join(sentences)


def notice(search: Measured) -> str:
    """Why no recommendation will be possible with these settings; "" where one is."""
    needed = needed_controls(LEVEL / max(1, search.confirmed))
    if not search.confirmed or search.controls >= needed:
        return ""
    return (
        f"controls is {search.controls}: no hybrid can be recommended. To confirm {count(search.confirmed, 'hybrid')} takes "
        f"{needed} random ones; raise controls" + (", or lower confirmed" if search.confirmed > 1 else "")
    )


def _skipped(found: Found) -> str:
    """Why random hybrids were not judged."""
    search, level = found.search, level_of(found.confirmed)
    begin = (
        f"{found.skipped} of {search.controls} random hybrids were not judged, because no recommendation was possible"
    )
    if not found.confirmed:
        return f"{found.skipped} of {search.controls} random hybrids were not judged: no hybrid was to be confirmed (curtail)."
    if search.controls < (needed := needed_controls(level)):
        return f"{begin} with these settings: {needed} are needed (controls, curtail)."
    return f"{begin} any more (curtail)."


def _nothing_confirmed(found: Found) -> str:
    """Why no hybrid was judged on held-out images."""
    if not found.search.confirmed:
        return "No hybrid was judged on held-out images: confirmed is 0."
    hybrids = [one for one in found.chosen_among if one.hybrid]
    failures = [one.failure for one in hybrids if one.failure]
    if failures and not any(one.complete for one in hybrids):
        failed = "all" if len(failures) == len(hybrids) else f"{len(failures)} of"
        others = "" if failed == "all" else ", and the others ended before the last rung"
        return (
            f"No hybrid was judged on held-out images: {failed} {len(hybrids)} failed on the images of the search{others}. "
            f"The first failure: {failures[0]}"
        )
    return "No hybrid was judged on held-out images: besides no defence, no hybrid is on the front."


def _verdict_on(found: Found, one: Comparison) -> str:
    outcome = one.outcome
    word = "is" if one in found.recommended else "is not"
    sentences = [f"{outcome.hybrid} {word} recommended."]
    if outcome.failed:
        sentences.append(
            f"Training or attack failed for it, or for no defence, on {seeds_of(outcome.failed)}: a hybrid is only recommended "
            "if all its seeds were judged."
        )
    sentences.append(_costs(found, outcome))
    # Of random hybrids that were judged until one of them was good the mean is biased, so that it is not given.
    sentences += [_recovers(outcome), *_stopped(found, one)] if found.skipped else _beside_random(found, one)
    return " ".join([*sentences, _held_out(outcome)])


def _beside_random(found: Found, one: Comparison) -> list[str]:
    """The strongest attack under the hybrid and under all random ones."""
    confidence = f"{100 * (1 - one.level):.3g} %"
    ends = f" ({100 * one.low:.1f} to {100 * one.high:.1f} at {confidence})" if math.isfinite(one.high) else ""
    return [
        f"{_recovers(one.outcome)[:-1]}, and {percent(one.outcome.share.mean + one.fewer)} in the mean of {one.random} random "
        f"hybrids: a difference of {100 * one.fewer:.1f} points{ends}.",
        f"{_as_good(found, one)} (by rank, a random hybrid is that good in {100 * one.chance:.1f} % of cases; at most "
        f"{100 * one.level:.1f} % are allowed).",
        _on_chance(one),
    ]


def _stopped(found: Found, one: Comparison) -> list[str]:
    """What the random hybrids say that were judged before the confirmation ended."""
    return [f"{_as_good(found, one)}: their mean would be biased, because they were judged until that was seen."]


def _as_good(found: Found, one: Comparison) -> str:
    return (
        f"{one.as_good} of {one.random} random hybrids lose at most {100 * found.search.tolerated:g} points in the mean and let no "
        "larger share be recovered"
    )


def _uncompared(found: Found, hybrid: str) -> str:
    """The sentences on a hybrid that was to be confirmed and has no comparison."""
    seeds = sorted({one.seed for one in found.failed if one.hybrid in (hybrid, "")})
    why = f": training or attack failed for it, or for no defence, on {seeds_of(seeds)}" if seeds else ""
    sentences = [f"{hybrid} is not recommended{why}."]
    for outcome in (one for one in found.held_out if one.hybrid == hybrid):
        sentences += [_costs(found, outcome), _recovers(outcome), _held_out(outcome)]
    level = level_of(found.confirmed)
    if found.search.controls < needed_controls(level):
        sentences.append(_too_few(found.search.controls, level))
    return " ".join(sentences)


def _costs(found: Found, outcome: HybridResult) -> str:
    search, level = found.search, level_of(found.confirmed)
    most = f"{100 * search.tolerated:g} points"
    if keeps(search, outcome, level):
        return f"It costs {points(outcome.lost)} points of accuracy: shown to lose at most {most}."
    high = outcome.loss(min(TAIL, level / 2)).high
    reaches = f"reaches {100 * high:.1f}" if math.isfinite(high) else "has no end"
    return f"It costs {points(outcome.lost)} points of accuracy: not shown to lose at most {most}, because the interval {reaches}."


def _recovers(outcome: HybridResult) -> str:
    return f"The strongest attack recovers {outcome.recovered} of {outcome.attacked} images, {percent(outcome.share.mean)}."


def _held_out(outcome: HybridResult) -> str:
    return f"All of this is on held-out images, with {outcome.accuracy.n} held-out seeds."


def _on_chance(one: Comparison) -> str:
    """What interval and rank show of the difference from random hybrids."""
    if one.high < 0:
        return "Attacks recover more images than in the mean of the random hybrids; the interval excludes 0."
    if one.low <= 0:
        return "The interval contains 0: the data do not show a difference."
    if one.random < one.needed:
        return _too_few(one.random, one.level)
    return (
        "Interval and rank are beyond chance."
        if one.ranks
        else ("The interval excludes 0, but by rank the data do not show a difference.")
    )


def _too_few(controls: int, level: float) -> str:
    needed = needed_controls(level)
    return f"{controls} random hybrids can never show that it is better beyond chance: {needed} are needed (controls)."


def seeds_of(seeds: Sequence[int]) -> str:
    """Seeds as text."""
    return f"seed{'' if len(seeds) == 1 else 's'} {', '.join(map(str, seeds))}"


def percent(value: float) -> str:
    """A share as text."""
    return f"{100 * value:.1f} %"


def points(value: MeanInterval | None) -> str:
    """A difference of accuracies with its interval, in points."""
    if value is None:
        return ""
    ends = f" ({100 * value.low:.1f} to {100 * value.high:.1f})" if math.isfinite(value.high) else ""
    return f"{100 * value.mean:.1f}{ends}"
