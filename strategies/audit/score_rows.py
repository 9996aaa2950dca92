"""From the scores of clients' replies to rows: mean, interval, count and worst case."""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import torch

from attacks.metrics.guesses import (
    COLUMN,
    MEMBER_SCORE,
    MEMBERSHIP_AUC,
    MEMBERSHIP_LOW_TPR,
    MEMBERSHIP_TPR,
    OTHER_SCORE,
)
from attacks.metrics.images import (
    IDENTIFIED,
    IDENTIFIED_CHANCE,
    JUDGED,
    PLACE,
    PSNR,
    RECOGNISABLE,
    STRUCTURE,
    is_recognisable,
)
from attacks.metrics.metric import ATTRIBUTES, CELLS, Interval, Metric
from attacks.metrics.names import Scores
from attacks.metrics.registry import known_metric, metric_of
from attacks.scoring.intervals import Estimate, binomial_interval, clustered_interval, common_chance, mean_interval
from attacks.scoring.roc import auc, auc_interval, roc_curve, tpr_at_fpr
from strategies.audit.threat_card import ThreatCard
from strategies.exchange.columns import Estimated, Scored

RowsOf = Callable[[Scores, ThreatCard], Iterable[Scored]]
LOW_RATE = 0.001
"""False positive rate of ``MEMBERSHIP_LOW_TPR``."""
FEW_FALSE = 0.02
"""False positive rate up to which a curve keeps as many points of its own: there the attacks that matter differ."""
PICTURED = {"psnr": PSNR.of("original"), "structure": STRUCTURE.of("original"), "identified": IDENTIFIED.of("original")}
"""Key in the index of pictures -> the client's score of a guess that stands there."""


def score_rows(scores: Scores, card: ThreatCard) -> Iterator[Scored]:
    """One row's columns per score of one attack or baseline, of all clients; behind ``IDENTIFIED`` stands ``RECOGNISABLE``.

    These two add ``chance`` to the card, see ``common_chance``: images without part in it count as not identified.
    """
    columns = sum(known_metric(name.metric) is COLUMN for name in scores)
    for name, values in scores.items():
        metric = metric_of(name.metric)
        if name == JUDGED[0]:
            yield from _verdict_rows(scores, card)
        elif metric.in_rows:
            cells = metric.interval is Interval.CELLS
            yield {
                "metric": name.metric,
                "reference": name.reference,
                "card": card,
                "worst": worst_of(metric, values),
                **(cells_and_interval(values, columns) if cells else _INTERVALS[metric.interval](values)),  # type: ignore[typeddict-item]
            }


def _verdict_rows(scores: Scores, card: ThreatCard) -> Iterator[Scored]:
    chance, fit = common_chance(scores[IDENTIFIED_CHANCE.of()])
    facts = card.but(chance=chance)
    marks = {IDENTIFIED: scores[JUDGED[0]], RECOGNISABLE: recognisable(scores)}
    hits = {key: [hit * fits for hit, fits in zip(of, fit, strict=True)] for key, of in marks.items() if of is not None}
    psnr, structure = (scores.get(name, []) for name in (JUDGED[1], JUDGED[3]))
    best = max(
        (at for at, hit in enumerate(hits.get(RECOGNISABLE, [])) if hit), key=structure.__getitem__, default=None
    )
    for metric, each in hits.items():
        yield {
            "metric": metric.name,
            "reference": "original",
            "card": facts,
            "worst": worst_of(metric, each),
            **share_and_interval(each),  # type: ignore[typeddict-item]  # that has no further columns
            "each": list(map(int, each)),
            # Scores of the recognisable image that is most similar in structure.
            "best_psnr": None if best is None else round(psnr[best], 4),
            "best_structure": None if best is None else round(structure[best], 4),
        }


def recognisable(scores: Scores) -> list[float] | None:
    """1 for each guess of a recognisable image, else 0; None where scores that decide are missing."""
    columns = [scores.get(name, []) for name in JUDGED]
    if len({*map(len, columns)}) > 1:
        return None
    return [float(is_recognisable(*row)) for row in zip(*columns, strict=True)]


MOST_LEFT_OUT = 32
"""Clients of which each is left out in turn; of more, one hardly counts."""
_VERDICTS = (
    IDENTIFIED.of("original"),
    RECOGNISABLE.of("original"),
    PSNR.of("original"),
    CELLS.decides,
    ATTRIBUTES.decides,
)
"""Scores from which verdicts follow."""
_BEHIND = (*_VERDICTS, *JUDGED, IDENTIFIED_CHANCE.of())
"""Scores from which their rows are made, besides those of columns of a table."""


def joined(scores: Iterable[Scores]) -> Scores:
    """Scores of several clients in their order."""
    pooled: Scores = defaultdict(list)
    for own in scores:
        for name, values in own.items():
            pooled[name].extend(values)
    return dict(pooled)


def _by_place(scores: Scores) -> Scores:
    """Scores of one client, those of single images in the order of their places: guesses of a batch have none of their own."""
    places = scores.get(PLACE.of(), [])
    order = sorted(range(len(places)), key=places.__getitem__)
    return {
        name: [values[at] for at in order] if len(values) == len(places) else values for name, values in scores.items()
    }


def rows_of_clients(rows_of: RowsOf, scores: Mapping[int, Scores], card: ThreatCard, unscored: int = 0) -> list[Scored]:
    """Rows of the scores of all clients. Those with a positive control have the number of clients as ``clients``.

    ``unscored`` images were attacked, and their clients' replies are of no use.
    """
    scores = {client: _by_place(scores[client]) for client in sorted(scores)}
    rows = list(rows_of(joined(scores.values()), card))
    places = [[client, int(place)] for client, of in scores.items() for place in of.get(PLACE.of(), [])]
    for columns in rows:
        if len(columns.get("each", "-")) == len(places):
            columns["each_of"] = places
        if metric_of(columns["metric"]).family:
            columns["clients"] = len(scores)
            if unscored:
                columns["unscored"] = unscored
    if 1 < len(scores) <= MOST_LEFT_OUT:
        _add_without(rows, rows_of, scores, card)
    return rows


def _add_without(rows: Iterable[Scored], rows_of: RowsOf, scores: Mapping[int, Scores], card: ThreatCard) -> None:
    """Add ``without_client``: in the place of a client stand the others' values, repeated, so that as many images are scored."""
    deciding = {of: columns for columns in rows if (of := (columns["metric"], columns["reference"])) in _VERDICTS}
    for client in scores if deciding else ():
        others = joined(of for partition, of in scores.items() if partition != client)
        filled = {
            name: [values[at * len(values) // n] for at in range(n) if values]
            for name, values in others.items()
            if name in _BEHIND or known_metric(name.metric) is COLUMN
            for n in [len(values) + len(scores[client].get(name, ()))]
        }
        for other in rows_of(filled, card):
            columns = deciding.get((other["metric"], other["reference"]), other)
            known = dict(columns)
            changed = {key: value for key, value in other.items() if key != "each" and value != known[key]}
            if "card" in changed:
                changed["card"] = {"chance": other["card"].chance}
            if changed:
                columns.setdefault("without_client", {})[str(client)] = changed


def membership_rows(scores: Scores, card: ThreatCard) -> Iterator[Scored]:
    """Columns of the rows of a test of membership: ``MEMBERSHIP_AUC``, with the curve in "roc", and ``MEMBERSHIP_TPR``.

    ``MEMBERSHIP_LOW_TPR`` follows where there are so many non-members that one of them is a rate of no more than ``LOW_RATE``.

    A record whose score is NaN is a failed trial. All of them have the lowest score, as an attack that sees NaN must treat members
    and non-members alike; "failures" counts them. No rows where either kind has no score, or NaN alone.
    """
    members, others = (torch.tensor(scores.get(score.of(), [])) for score in (MEMBER_SCORE, OTHER_SCORE))
    failed = members.isnan(), others.isnan()
    if failed[0].all() or failed[1].all():
        return
    members, others = (
        scores.nan_to_num(nan=-math.inf, posinf=math.inf, neginf=-math.inf) for scores in (members, others)
    )
    lost, n = sum(int(mask.sum()) for mask in failed), len(members) + len(others)
    counts = card.but(members=len(members), others=len(others))
    if lost:
        why = f"{lost} of {n} records have the score NaN; each counts as the lowest score"
        counts = counts.but(attack_failures=(*card.attack_failures, why))
    fpr, tpr = roc_curve(members, others)
    points = [[round(float(x), 4), round(float(y), 4)] for x, y in zip(fpr, tpr, strict=True)]
    few = sum(rate <= FEW_FALSE for rate, _ in points)
    thinned = points[: few : max(1, few // 100)] + points[few :: max(1, len(points) // 100)]
    estimates = {MEMBERSHIP_AUC: (auc(members, others), *auc_interval(members, others))}
    rates = {MEMBERSHIP_TPR: 0.01} | ({MEMBERSHIP_LOW_TPR: LOW_RATE} if len(others) * LOW_RATE >= 1 else {})
    estimates |= {metric: tpr_at_fpr(members, others, false) for metric, false in rates.items()}
    for metric, (value, low, high) in estimates.items():
        columns: Scored = {"metric": metric.name, "reference": "", "value": value, "ci_low": low, "ci_high": high}
        if metric is MEMBERSHIP_AUC:
            columns["roc"] = [*thinned, points[-1]]
        yield columns | {"card": counts, "n": n, "failures": lost}


def mean_and_interval(values: Sequence[float]) -> Estimated:
    """Mean, 95 % interval of the mean (Student's t; none for one value) and n."""
    if len(values) > 1:
        return _columns(mean_interval(values), len(values))
    return {"value": float(values[0]), "n": 1, "ci_low": None, "ci_high": None} if values else {"value": None, "n": 0}


def share_and_interval(values: Sequence[float]) -> Estimated:
    """Share of ones among ones and zeros, its exact 95 % interval (Clopper-Pearson) and n."""
    if not values:
        return {"value": None, "n": 0}
    return _columns(binomial_interval(round(sum(values)), len(values)), len(values))


def _columns(estimate: Estimate, n: int) -> Estimated:
    return {"value": estimate.value, "n": n, "ci_low": estimate.low, "ci_high": estimate.high}


def batches_and_interval(values: Sequence[float]) -> Estimated:
    """Mean share of the classes that are right, its 95 % interval (none for one batch) and n, which counts batches.

    Each batch counts as a single trial, however many images it has: the interval then stays within [0, 1], and is the exact one
    where every batch is all right or all wrong.
    """
    if len(values) > 1 and all(value in (0, 1) for value in values):
        return share_and_interval(values)
    return cells_and_interval(values, 1)


def cells_and_interval(values: Sequence[float], columns: int) -> Estimated:
    """Mean share of the cells that are right, its 95 % interval (none for one row) and n, which counts rows.

    Cells of a row are guessed together, and an attack that finds one often finds all: rows are clusters (``clustered_interval``) of
    ``columns`` cells; where these are 0, as unknown, the interval is no shorter than with one.
    """
    if len(values) < 2 or not all(0 <= value <= 1 for value in values):  # no shares
        return mean_and_interval(values)
    return _columns(clustered_interval(values, len(values) * max(columns, 1)), len(values))


_INTERVALS = {
    Interval.MEAN: mean_and_interval,
    Interval.EXACT: share_and_interval,
    Interval.BATCHES: batches_and_interval,
}


def worst_of(metric: Metric, values: Sequence[float]) -> float | None:
    """The value of the person with the largest loss; None where there are none."""
    return (max if metric.higher_leaks else min)(values) if values else None
