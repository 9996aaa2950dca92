"""Round trips with nodes that are slow, silent or gone; a clock of the test's own, so nobody waits."""

import pytest
from flwr.app import ConfigRecord, RecordDict

from clients.flower_private import error_code
from strategies.exchange.exchange import MARGIN_SECONDS, Exchange
from tests.strategies.stub_grid import Clock, StubGrid, contents

NODES = {0: 103, 1: 101, 2: 102}
"""Node ids in another order than partitions."""


def exchange_over(clock: Clock, plans: dict[int, list[tuple[float, int]]], timeout: float = 5.0) -> Exchange:
    return Exchange(StubGrid(clock, {node: plans.get(p, []) for p, node in NODES.items()}), NODES, timeout)  # type: ignore[arg-type]


CRASHED = error_code("MESSAGE_UNAVAILABLE")


def test_replies_come_in_order_of_partition_whoever_is_first(clock: Clock) -> None:
    exchange = exchange_over(clock, {0: [(3.0, 0)], 1: [(0.1, 0)], 2: [(1.0, 0)]})
    replies = exchange("train", contents(2, 0, 1))
    assert list(replies) == [0, 1, 2]
    assert [reply.content["config"]["for"] for reply in replies.values()] == [0, 1, 2]
    assert clock.now - 1000.0 == pytest.approx(3.0, abs=0.5)


def test_posted_messages_work_while_nobody_waits(clock: Clock) -> None:
    exchange = exchange_over(clock, {0: [(2.0, 0), (2.0, 0)]})
    first = exchange.post("train.step", contents(0))
    assert not clock.slept
    exchange.wait(first)
    second = exchange.post("train.step", contents(0))
    clock.now += 10.0
    slept = len(clock.slept)
    assert list(exchange.wait(second)) == [0]
    assert len(clock.slept) == slept, "the reply was there already"


def test_a_message_that_is_never_answered_holds_up_until_the_deadline_only(clock: Clock) -> None:
    exchange = exchange_over(clock, {0: [(0.5, 0)], 2: [(0.5, 0)]}, timeout=5.0)
    posted = exchange.post("train", contents(0, 1, 2))
    # Clients may queue behind each other on one worker, and one of them may be run twice.
    assert posted.deadline == 1000.0 + 4 * 5.0 + MARGIN_SECONDS
    replies = exchange.wait(posted)
    assert list(replies) == [0, 2]
    assert posted.deadline <= clock.now <= posted.deadline + 1.0
    assert len(exchange.grid.pushed) == 3, "silence is no crash: nothing is sent again"  # type: ignore[attr-defined]


def test_a_lost_message_is_an_error_of_its_own_client_and_is_not_sent_again(clock: Clock) -> None:
    """Whoever starts workers again keeps the neighbours' messages; see tests/clients/process/test_lost_worker.py."""
    exchange = exchange_over(clock, {0: [(0.0, CRASHED), (0.2, 0)], 1: [(0.0, 0)], 2: [(1.0, 0)]})
    replies = exchange("train.step", contents(0, 1, 2))
    assert [reply.has_error() for reply in replies.values()] == [True, False, False]
    assert replies[0].error.code == CRASHED
    assert len(exchange.grid.pushed) == 3  # type: ignore[attr-defined]


def test_a_late_reply_to_an_earlier_message_is_not_taken_for_another(clock: Clock) -> None:
    exchange = exchange_over(clock, {0: [(1000.0, 0), (1.0, 0)]}, timeout=5.0)
    assert exchange("train", contents(0)) == {}
    again = {0: RecordDict({"config": ConfigRecord({"for": 7})})}
    clock.now += 1000.0
    (reply,) = exchange("evaluate", again).values()
    assert reply.content["config"]["for"] == 7
