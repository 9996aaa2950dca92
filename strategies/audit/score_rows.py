"""From the clients' scores to the columns of rows: metric and reference, mean, interval, count and worst case."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from attacks.scoring.roc import auc, auc_interval, binomial_interval, clustered_interval, roc_curve, tpr_at_fpr
from clients.scoring.null_baselines import FLAT_PSNR, NULL_PSNR
from clients.scoring.table_audit import CELLS, COLUMN
from strategies.audit.threat_card import ThreatCard

CHANCE = "retrieval-chance"
"""Name under which clients send the chance of a blind guess beside "retrieval-original"."""
LABEL_ACCURACY = "label-accuracy"
"""Share of the classes of a batch, or of an image's, that were guessed."""
ATTRIBUTE_ACCURACY = "attribute-accuracy"
"""Share of images whose sensitive attribute was guessed."""
MS_SSIM_SUCCESS = "ms-ssim-success"
"""Share of images whose reconstruction the delta protection paper counts as a success."""
PICKED_PSNR = "picked_psnr"
"""Key under which a row of retrieval holds the PSNR, in dB, of every image that was picked out: who was read, one by one."""
PICKED_GAIN = "picked_gain"
"""Key under which it holds, in the same order, how far each lies above the best null baseline for that very image, in dB."""
PICKED_DETAIL = "picked_detail"
"""Key under which it holds, in the same order, how far each lies above its own mean colour, in dB: flat images have no detail."""
PICTURED = {
    "psnr": "psnr-original",
    "null_psnr": NULL_PSNR,
    "flat_psnr": FLAT_PSNR,
    "identified": "retrieval-original",
}
"""Key in the index of pictures -> the client's score of a guess that stands there."""
MEMBER, OTHER = "member-score", "other-score"
"""Names under which clients send the scores of a test of membership."""


def score_rows(scores: Mapping[str, Sequence[float]], card: ThreatCard) -> Iterator[dict[str, Any]]:
    """One row's columns per score.

    Args:
        scores: Name -> one value per image (or batch, or client), such as "psnr-original".
        card: The threat card; the row of retrieval adds ``chance`` to it, the highest of any of its images.
    """
    for name, values in scores.items():
        if name in (CHANCE, NULL_PSNR, FLAT_PSNR):
            continue
        metric, _, reference = name.rpartition("-") if name.endswith(("-original", "-transformed")) else (name, "", "")
        told, numbers, more = card, mean_and_interval(values), {}
        if metric == LABEL_ACCURACY:
            numbers = batches_and_interval(values)
        elif metric == CELLS:
            numbers = cells_and_interval(values, sum(other.startswith(COLUMN) for other in scores))
        elif metric.startswith(COLUMN):
            numbers = share_and_interval(values)
        if metric == "retrieval":
            told, numbers = card.but(chance=max(scores[CHANCE], default=1.0)), share_and_interval(values)
            more = _picked(values, scores, reference)
        elif metric in (ATTRIBUTE_ACCURACY, MS_SSIM_SUCCESS):
            numbers = share_and_interval(values)
        yield {
            "metric": metric,
            "reference": reference,
            "card": told,
            "worst": _worst(metric, values),
            **numbers,
            **more,
        }


def _picked(
    hits: Sequence[float], scores: Mapping[str, Sequence[float]], reference: str
) -> dict[str, list[float] | None]:
    """PSNR, gain and detail of every image that was picked out, by PSNR; None where the clients did not tell it of all images."""
    psnr = scores.get(f"psnr-{reference}", ())
    if len(psnr) != len(hits):
        return {PICKED_PSNR: None} if psnr else {}
    picked = sorted((at for at, hit in enumerate(hits) if hit), key=lambda at: psnr[at])
    found: dict[str, list[float] | None] = {PICKED_PSNR: [round(psnr[at], 4) for at in picked]}
    for key, name in ((PICKED_GAIN, NULL_PSNR), (PICKED_DETAIL, FLAT_PSNR)):
        below = scores.get(name, ())
        if len(below) == len(hits):
            found[key] = [rounded_gain(psnr[at] - below[at]) for at in picked]
    return found


def rounded_gain(gain: float) -> float:
    """A gain in dB as rows hold it: by this number it is decided whether an image counts as recovered."""
    return round(gain, 4)


def membership_rows(scores: Mapping[str, Sequence[float]], card: ThreatCard) -> Iterator[dict[str, Any]]:
    """Columns of the rows of a test of membership: "membership-auc", with the curve in "roc", and "membership-tpr" at 1 %.

    Args:
        scores: ``MEMBER`` and ``OTHER`` -> one score per record, of all clients together; no rows where either is empty.
        card: The threat card, to which the numbers of records are added.
    """
    members, others = (torch.tensor(scores.get(name, [])) for name in (MEMBER, OTHER))
    if not len(members) or not len(others):
        return
    common = {"card": card.but(members=len(members), others=len(others)), "n": len(members) + len(others)}
    fpr, tpr = roc_curve(members, others)
    points = [[round(float(x), 4), round(float(y), 4)] for x, y in zip(fpr, tpr, strict=True)]
    thinned = points[:: max(1, len(points) // 100)]
    low, high = auc_interval(members, others)
    area = {"metric": "membership-auc", "value": auc(members, others), "ci_low": low, "ci_high": high}
    yield {**area, "roc": [*thinned, points[-1]], **common}
    rate, low, high = tpr_at_fpr(members, others)
    yield {"metric": "membership-tpr", "value": rate, "ci_low": low, "ci_high": high, **common}


def mean_and_interval(values: Sequence[float]) -> dict[str, Any]:
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


def share_and_interval(values: Sequence[float]) -> dict[str, Any]:
    """Share of ones among ones and zeros, its exact 95 % interval (Clopper-Pearson) and n."""
    if not values:
        return {"value": None, "n": 0}
    share, low, high = binomial_interval(round(sum(values)), len(values))
    return {"value": share, "n": len(values), "ci_low": low, "ci_high": high}


def batches_and_interval(values: Sequence[float]) -> dict[str, Any]:
    """Mean share of the classes that are right, its 95 % interval (none for one batch) and n, which counts batches.

    Each batch counts as a single trial, however many images it has: the interval then stays within [0, 1], and is the exact one
    where every batch is all right or all wrong.
    """
    if len(values) > 1 and all(value in (0, 1) for value in values):
        return share_and_interval(values)
    return cells_and_interval(values, 1)


def cells_and_interval(values: Sequence[float], columns: int) -> dict[str, Any]:
    """Mean share of the cells that are right, its 95 % interval (none for one row) and n, which counts rows.

    Cells of a row are guessed together, and who reads one often reads all: rows are clusters (``clustered_interval``).

    Args:
        values: Of each row the share.
        columns: Cells of a row; 0 where nobody said so, which makes the interval no shorter than with one.
    """
    if len(values) < 2 or not all(0 <= value <= 1 for value in values):  # no shares, whoever sent them
        return mean_and_interval(values)
    share, low, high = clustered_interval(values, len(values) * max(columns, 1))
    return {"value": share, "n": len(values), "ci_low": low, "ci_high": high}


def _worst(metric: str, values: Sequence[float]) -> float | None:
    """The value of the person who lost most."""
    least = metric.startswith("mse") or metric.endswith(("loss", "cost"))
    return (min(values) if least else max(values)) if values else None
