"""What a client may answer when it compared its reply with the step that attacks reckon with."""

from __future__ import annotations

import math

import pytest
from flwr.app import Message, MetricRecord, RecordDict

from strategies.external_app.requests import _fault
from tests.strategies.exchange.test_hostile_replies import reply_of


def reply(difference: float) -> Message:
    content = RecordDict({"metrics": MetricRecord({"difference": difference})})
    return reply_of(content, 1)


@pytest.mark.parametrize("difference", [0, 0.0, 2.5])
def test_a_difference_is_a_number_from_0_on(difference: float) -> None:
    assert _fault(0, reply(difference)) == ""


@pytest.mark.parametrize("difference", [math.inf, math.nan, -0.5])
def test_any_other_number_is_a_fault(difference: float) -> None:
    assert "a number from 0 on" in _fault(0, reply(difference))


def test_a_reply_without_one_is_a_fault() -> None:
    assert "a number from 0 on" in _fault(0, reply_of(RecordDict(), 1))
