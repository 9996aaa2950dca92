"""What a client may answer when it compared its reply with the step that attacks reckon with."""

import math

from flwr.app import MetricRecord, RecordDict

from strategies.external_app.nodes import _fault
from tests.strategies.stub_grid import reply_of


def test_a_difference_is_a_number_from_0_on() -> None:
    for difference in (0, 0.0, 2.5, math.inf, math.nan, -0.5):
        fault = _fault(0, reply_of(RecordDict({"metrics": MetricRecord({"difference": difference})}), 1))
        assert (fault == "") == (0 <= difference < math.inf), difference
    assert "a number from 0 on" in _fault(0, reply_of(RecordDict(), 1))
