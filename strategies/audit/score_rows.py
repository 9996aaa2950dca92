"""From a client's reply to an audit to rows: its checks, as a client may send anything; mean, interval, count and worst case."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from flwr.app import Message, MetricRecord

from attacks.metrics.guesses import (
    COLUMN,
    LABEL_ACCURACY,
    MEMBER_SCORE,
    MEMBERSHIP_AUC,
    MEMBERSHIP_LOW_TPR,
    MEMBERSHIP_TPR,
    OTHER_SCORE,
)
from attacks.metrics.images import FLAT_PSNR, NULL_PSNR, PSNR, RETRIEVAL, RETRIEVAL_CHANCE
from attacks.metrics.metric import ATTRIBUTES, CELLS, LABELS, Interval, Metric
from attacks.metrics.names import GuessName, Role, ScoreName, Scores, names_of, scores_to_texts
from attacks.metrics.registry import MEASURED, known_metric, metric_of
from attacks.metrics.training import COUNTED
from attacks.scoring.roc import auc, auc_interval, binomial_interval, clustered_interval, roc_curve, tpr_at_fpr
from clients.scoring.audit import ALONE, COUNTS
from clients.task.task import Task
from clients.wire.records import tensors_of, values_of
from clients.wire.texts import shortened
from strategies.audit.threat_card import ThreatCard

BASELINES = "baselines"
"""The kind of guesses that only clients make."""
LONGEST_NAME = 200
MOST_PICTURES = 1024
"""Of one record; a report shows a few."""
_EXPECTED = {
    "images": (*(one.of("original") for one in MEASURED), NULL_PSNR.of(), FLAT_PSNR.of()),
    "membership": (MEMBER_SCORE.of(), OTHER_SCORE.of()),
    **{one.name: (ScoreName(*one.decides),) for one in (ATTRIBUTES, CELLS, LABELS)},
}
"""Kind of guesses -> scores that all of them have."""
_PICTURE = re.compile(r"(original|protected)-(\d{1,4})")


def fault_in_scores(
    reply: Message,
    guessed: str,
    task: Task,
    guesses: float = math.inf,
    dealt: tuple[float, float] = (math.inf, math.inf),
    targets: int = 0,
) -> str:
    """Reason why a client's reply is no audit of guesses of one kind (or of ``BASELINES``), or "".

    ``guesses`` is the most values of one score, ``dealt`` the most members and the most others of a test of membership.
    Of ``targets`` observations no expected score may be missing; 0: any may be.
    """
    found = reply.content.get("metrics")
    if not isinstance(found, MetricRecord):
        return "the answer has no 'metrics'"
    most = {MEMBER_SCORE.name: dealt[0], OTHER_SCORE.name: dealt[1]}
    faults = (_fault_in_score(name, found, guessed, guesses, most) for name in found)
    steps = task.plan.local_steps
    known = math.inf not in dealt and not (steps and task.plan.defenses.bounded)  # a Poisson sample's size is secret
    least = {LABEL_ACCURACY.of(): targets, MEMBER_SCORE.of(): 1 if steps else dealt[0], OTHER_SCORE.of(): dealt[1]}
    short = (
        f"metrics: {'/'.join(name)} has too few values, expected {number:g}"
        for name in (_EXPECTED.get(guessed, ()) if guesses and targets else ())
        for number in [least.get(name, min(guesses, *filter(None, dealt))) if known else 1]
        if len(scores_of(reply).get(ALONE, {}).get(name, [])) < number
    )
    return next(filter(None, faults), "") or _fault_in_pictures(reply, task) or next(short, "")


def _fault_in_score(
    text: str, found: Mapping[str, Any], guessed: str, guesses: float, most: Mapping[str, float]
) -> str:
    values = found[text]
    unknown = f"metrics: {shortened(text)} is the name of no score of {guessed}"
    try:
        guess, name = names_of(text)
    except ValueError:
        return unknown
    parts = "".join((*guess, *name))
    expected = (
        guess == COUNTS or guess.role in (Role.NULL_BASELINE, Role.SCALE) if guessed == BASELINES else guess == ALONE
    )
    if len(parts) > LONGEST_NAME or not parts.isprintable() or not expected:
        return unknown
    metric = metric_of(name.metric)
    if not isinstance(values, list) or not all(map(metric.allows, values)):
        return f"metrics: {shortened(text)} is {shortened(values)}, expected a list of {metric.allowed}"
    if len(values) > (allowed := 1 if guess == COUNTS else most.get(name.metric, guesses)):
        return f"metrics: {shortened(text)} has {len(values)} values, expected at most {allowed}"
    if guess == COUNTS:
        # A defence of another package uses its own names; a registered metric must be one that defences report.
        return unknown if known_metric(name.metric) not in (None, *COUNTED) else ""
    if metric is RETRIEVAL:
        (chance,) = scores_to_texts({guess: {RETRIEVAL_CHANCE.of(): []}})
        chances = found.get(chance)
        if not (isinstance(chances, list) and len(chances) == len(values)):
            return f"metrics: {shortened(text)} comes without as many values of {RETRIEVAL_CHANCE.name}"
    return ""


def _fault_in_pictures(reply: Message, task: Task) -> str:
    shape, targets = task.plan.data_card().input_shape, task.plan.probe_targets
    for name, images in tensors_of(reply, "pictures").items():
        named = _PICTURE.fullmatch(name)
        if not named or int(named[2]) >= targets:
            return f"pictures: {shortened(name)} is none of the {targets} targets"
        if not images.is_floating_point() or images.shape[1:] != shape or not 0 < len(images) <= MOST_PICTURES:
            return f"pictures: {name} is {images.dtype}{tuple(images.shape)}, expected images {shape}"
    return ""


def scores_of(reply: Message) -> dict[GuessName, Scores]:
    """The scores of a client's reply in which ``fault_in_scores`` found nothing."""
    found: dict[GuessName, Scores] = defaultdict(dict)
    for text, values in values_of(reply, "metrics").items():
        guess, name = names_of(text)
        found[guess][name] = list(values)
    return found


Columns = dict[str, Any]
"""Columns of a row by name."""
RowsOf = Callable[[Scores, ThreatCard], Iterable[Columns]]
PICKED_PSNR = "picked_psnr"
"""Key under which a row of retrieval holds the PSNR, in dB, of every identified image."""
PICKED_GAIN = "picked_gain"
"""Key under which it holds, in the same order, how far each lies above the best null baseline for that very image, in dB."""
PICKED_DETAIL = "picked_detail"
"""Key under which it holds, in the same order, how far each lies above its own mean colour, in dB: flat images have no detail."""
MISSED_GAIN = "missed_gain"
"""Key under which it holds the gains of the images that were not identified, in dB."""
LOW_RATE = 0.001
"""False positive rate of ``MEMBERSHIP_LOW_TPR``."""
FEW_FALSE = 0.02
"""False positive rate up to which a curve keeps as many points of its own: there the attacks that matter differ."""
PICTURED = {
    "psnr": PSNR.of("original"),
    "null_psnr": NULL_PSNR.of(),
    "flat_psnr": FLAT_PSNR.of(),
    "identified": RETRIEVAL.of("original"),
}
"""Key in the index of pictures -> the client's score of a guess that stands there."""


def score_rows(scores: Scores, card: ThreatCard) -> Iterator[Columns]:
    """One row's columns per score of one attack or baseline, of all clients.

    The row of retrieval adds ``chance`` to the card: the highest of its images, without those whose chance is more than twice
    the median. These few count as not identified, as one client's word would else decide for all.
    """
    columns = sum(known_metric(name.metric) is COLUMN for name in scores)
    for name, values in scores.items():
        metric = metric_of(name.metric)
        if not metric.in_rows:
            continue
        facts, more, cells = card, {}, metric.interval is Interval.CELLS
        if metric is RETRIEVAL:
            chances = scores[RETRIEVAL_CHANCE.of()]
            most = 2 * sorted(chances)[len(chances) // 2] if chances else 1.0
            values = [value * (chance <= most) for value, chance in zip(values, chances, strict=True)]
            facts = card.but(chance=max((one for one in chances if one <= most), default=1.0))
            more = _picked(values, scores, name.reference)
        yield {
            "metric": name.metric,
            "reference": name.reference,
            "card": facts,
            "worst": worst_of(metric, values),
            **(cells_and_interval(values, columns) if cells else _INTERVALS[metric.interval](values)),
            **more,
        }


def _picked(hits: Sequence[float], scores: Scores, reference: str) -> dict[str, list[float] | None]:
    """PSNR, gain and detail of identified images, by PSNR, and gains of the others; None where clients did not report all."""
    psnr = scores.get(PSNR.of(reference), [])
    if len(psnr) != len(hits):
        return {PICKED_PSNR: None} if psnr else {}
    picked = sorted((at for at, hit in enumerate(hits) if hit), key=lambda at: psnr[at])
    found: dict[str, list[float] | None] = {PICKED_PSNR: [round(psnr[at], 4) for at in picked]}
    for key, name in ((PICKED_GAIN, NULL_PSNR), (PICKED_DETAIL, FLAT_PSNR)):
        below = scores.get(name.of(), [])
        if len(below) == len(hits):
            found[key] = [rounded_gain(psnr[at] - below[at]) for at in picked]
    nulls = scores.get(NULL_PSNR.of(), [])
    missed = [psnr[at] - null for at, (null, hit) in enumerate(zip(nulls, hits, strict=False)) if not hit]
    if len(nulls) == len(hits) and all(map(math.isfinite, missed)):
        found[MISSED_GAIN] = sorted(map(rounded_gain, missed))
    return found


def rounded_gain(gain: float) -> float:
    """A gain in dB as rows hold it; this rounded number decides whether an image counts as recovered."""
    return round(gain, 4)


MOST_LEFT_OUT = 32
"""Clients of which each is left out in turn; of more, one hardly counts."""
WITHOUT = "without_client"
"""Key under which a row holds, for each client, what would be other values without it."""

UNSCORED = "unscored"
"""Key under which it holds the number of attacked images without a usable score."""


def joined(scores: Iterable[Scores]) -> Scores:
    """Scores of several clients in their order."""
    found: Scores = defaultdict(list)
    for one in scores:
        for name, values in one.items():
            found[name].extend(values)
    return dict(found)


def rows_of_clients(
    rows_of: RowsOf, scores: Mapping[int, Scores], card: ThreatCard, unscored: int = 0
) -> list[Columns]:
    """Rows of the scores of all clients. Those that decide verdicts have the number of clients as ``clients``, and ``WITHOUT``.

    ``unscored`` images were attacked, and their clients' replies are of no use.

    In the place of a client that is left out stand the values of the others, repeated: as many images are scored.
    """
    whole = joined(scores.values())
    found = list(rows_of(whole, card))
    deciding = [columns for columns in found if metric_of(columns["metric"]).family]
    for columns in deciding:
        columns |= {"clients": len(scores)} | ({UNSCORED: unscored} if unscored else {})
    for client in scores if 1 < len(scores) <= MOST_LEFT_OUT else ():
        others = joined(of for one, of in scores.items() if one != client)
        filled = {
            name: [values[at * len(values) // n] for at in range(n) if values]
            for name, values in others.items()
            for n in [len(whole[name])]
        }
        without = {(one["metric"], one["reference"]): one for one in rows_of(filled, card)}
        for columns in deciding:
            other = without.get((columns["metric"], columns["reference"]), {})
            changed = {key: value for key, value in other.items() if key != "roc" and value != columns[key]}
            if isinstance(facts := changed.get("card"), ThreatCard):
                changed["card"] = {"chance": facts.chance}
            if changed:
                columns.setdefault(WITHOUT, {})[str(client)] = changed
    return found


def membership_rows(scores: Scores, card: ThreatCard) -> Iterator[Columns]:
    """Columns of the rows of a test of membership: ``MEMBERSHIP_AUC``, with the curve in "roc", and ``MEMBERSHIP_TPR``.

    ``MEMBERSHIP_LOW_TPR`` follows where there are so many non-members that one of them is a rate of no more than ``LOW_RATE``.

    A record whose score is NaN is a failed trial. All of them have the lowest score, as an attack that sees NaN must treat members
    and non-members alike; "failures" counts them. No rows where either kind has no score, or NaN alone.
    """
    members, others = (torch.tensor(scores.get(one.of(), [])) for one in (MEMBER_SCORE, OTHER_SCORE))
    failed = members.isnan(), others.isnan()
    if failed[0].all() or failed[1].all():
        return
    members, others = (
        scores.nan_to_num(nan=-math.inf, posinf=math.inf, neginf=-math.inf) for scores in (members, others)
    )
    lost, n = sum(int(one.sum()) for one in failed), len(members) + len(others)
    counts = card.but(members=len(members), others=len(others))
    if lost:
        why = f"{lost} of {n} records have the score NaN; each counts as the lowest score"
        counts = counts.but(attack_failures=(*card.attack_failures, why))
    common = {"card": counts, "n": n, "failures": lost}
    fpr, tpr = roc_curve(members, others)
    points = [[round(float(x), 4), round(float(y), 4)] for x, y in zip(fpr, tpr, strict=True)]
    few = sum(rate <= FEW_FALSE for rate, _ in points)
    thinned = points[: few : max(1, few // 100)] + points[few :: max(1, len(points) // 100)]
    curve: Columns = {"roc": [*thinned, points[-1]]}
    found = {MEMBERSHIP_AUC: (auc(members, others), *auc_interval(members, others))}
    rates = {MEMBERSHIP_TPR: 0.01} | ({MEMBERSHIP_LOW_TPR: LOW_RATE} if len(others) * LOW_RATE >= 1 else {})
    found |= {metric: tpr_at_fpr(members, others, false) for metric, false in rates.items()}
    for metric, (value, low, high) in found.items():
        own = {"metric": metric.name, "reference": "", "value": value, "ci_low": low, "ci_high": high}
        yield own | curve | common
        curve = {}


def mean_and_interval(values: Sequence[float]) -> Columns:
    """Mean, 95 % interval of the mean (Student's t; none for one value) and n."""
    from scipy.stats import t

    n = len(values)
    if n == 0:
        return {"value": None, "n": 0}
    mean = float(np.mean(values))
    if n == 1:
        return {"value": mean, "n": 1, "ci_low": None, "ci_high": None}
    half = float(t.ppf(0.975, n - 1) * np.std(values, ddof=1) / math.sqrt(n))
    return {"value": mean, "n": n, "ci_low": mean - half, "ci_high": mean + half}


def share_and_interval(values: Sequence[float]) -> Columns:
    """Share of ones among ones and zeros, its exact 95 % interval (Clopper-Pearson) and n."""
    if not values:
        return {"value": None, "n": 0}
    share, low, high = binomial_interval(round(sum(values)), len(values))
    return {"value": share, "n": len(values), "ci_low": low, "ci_high": high}


def batches_and_interval(values: Sequence[float]) -> Columns:
    """Mean share of the classes that are right, its 95 % interval (none for one batch) and n, which counts batches.

    Each batch counts as a single trial, however many images it has: the interval then stays within [0, 1], and is the exact one
    where every batch is all right or all wrong.
    """
    if len(values) > 1 and all(value in (0, 1) for value in values):
        return share_and_interval(values)
    return cells_and_interval(values, 1)


def cells_and_interval(values: Sequence[float], columns: int) -> Columns:
    """Mean share of the cells that are right, its 95 % interval (none for one row) and n, which counts rows.

    Cells of a row are guessed together, and an attack that finds one often finds all: rows are clusters (``clustered_interval``) of
    ``columns`` cells; where these are 0, as unknown, the interval is no shorter than with one.
    """
    if len(values) < 2 or not all(0 <= value <= 1 for value in values):  # no shares
        return mean_and_interval(values)
    share, low, high = clustered_interval(values, len(values) * max(columns, 1))
    return {"value": share, "n": len(values), "ci_low": low, "ci_high": high}


_INTERVALS = {
    Interval.MEAN: mean_and_interval,
    Interval.EXACT: share_and_interval,
    Interval.BATCHES: batches_and_interval,
}


def worst_of(metric: Metric, values: Sequence[float]) -> float | None:
    """The value of the person with the largest loss; None where there are none."""
    return (max if metric.higher_leaks else min)(values) if values else None
