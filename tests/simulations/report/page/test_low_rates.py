"""The rate of membership at 0.1 % false positives on the page."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.simulations.report.page.test_leaks import SURE, build
from tests.simulations.report.report_run import demo_rows, member_rows


@pytest.mark.parametrize(("others", "scored"), [(999, True), (1000, True), (1000, False)])
def test_a_rate_at_one_per_mille_has_its_interval_where_it_was_scored(
    tmp_path: Path, others: int, scored: bool
) -> None:
    """999 non-members have no such rate, whatever a row says; without its row the curve gives the rate."""
    rows = member_rows("", 0.7, SURE, others=others)
    if scored:
        rows.append(rows[1] | {"metric": "membership-low-tpr", "value": 0.04, "ci_low": 0.03, "ci_high": 0.06})
    line = build(tmp_path, demo_rows() + rows).table("membership")[0]
    expected = ["4.0 %", "3.0 to 6.0"] if scored else ["5.0 %"]
    assert line.get("TPR at 0.1 % FPR") == (expected if others == 1000 else None)
