"""From scores to the columns of rows."""

from __future__ import annotations

from dataclasses import replace

import pytest
from scipy import stats

from simulations.report.analysis.score import merge
from simulations.rows import Row
from strategies.audit.score_rows import mean_and_interval, score_rows
from strategies.audit.threat_card import ThreatCard


@pytest.mark.parametrize("hits", [0, 1, 25, 50])
@pytest.mark.parametrize("metric", ["ms-ssim-success", "attribute-accuracy"])
def test_a_share_has_the_exact_interval_in_rows_and_report(metric: str, hits: int) -> None:
    """Student's t of one success in 50 begins below 0, and of none has no width."""
    values = [1.0] * hits + [0.0] * (50 - hits)
    exact = stats.binomtest(hits, 50).proportion_ci(0.95, "exact")
    (columns,) = score_rows({metric: values}, ThreatCard())
    assert (columns["value"], columns["n"]) == (hits / 50, 50)
    assert (columns["ci_low"], columns["ci_high"]) == pytest.approx((exact.low, exact.high))
    score = merge([Row(**columns)])
    assert (score.mean, score.low, score.high) == (hits / 50, pytest.approx(exact.low), pytest.approx(exact.high))
    # Rows of earlier versions carry Student's interval; two seeds are one sample of 100 images.
    old = replace(Row(**columns), **mean_and_interval(values))
    both = stats.binomtest(2 * hits, 100).proportion_ci(0.95, "exact")
    pooled = merge([old, replace(old, seed=1)])
    assert (pooled.low, pooled.high, pooled.n) == (pytest.approx(both.low), pytest.approx(both.high), 100)


def test_who_was_picked_out_is_told_one_by_one() -> None:
    scores = {
        "psnr-original": [31.237, 9.0, 12.5, float("nan")],
        "retrieval-original": [1.0, 0.0, 1.0, 0.0],
        "retrieval-chance": [0.01] * 4,
    }
    (row,) = (row for row in score_rows(scores, ThreatCard()) if row["metric"] == "retrieval")
    assert row["picked_psnr"] == [12.5, 31.24]
    # Scores of other images than those of the line-up say nothing of single ones.
    scores["psnr-original"] = [31.0]
    (row,) = (row for row in score_rows(scores, ThreatCard()) if row["metric"] == "retrieval")
    assert "picked_psnr" not in row
