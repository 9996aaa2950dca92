"""Numbers of the control table."""

from __future__ import annotations

import pytest

from simulations.report.page.tables import _picked
from simulations.run_folder.rows import Row
from strategies.audit.threat_card import ThreatCard


def test_images_picked_out_are_counted_where_the_chance_is_known() -> None:
    def found(**setting: float) -> Row:
        return Row(metric="retrieval", reference="original", value=0.75, n=4, card=ThreatCard(**setting))

    assert _picked([found(chance=0.01), found(chance=0.02)]) == (6, 8, pytest.approx(50.0))
    assert _picked([found()]) is None
    assert _picked([found(chance=0.0)]) is None
    assert _picked([]) is None
