"""Round trips with nodes that are slow, silent or gone; what becomes of every reply, and how many of them a round needs."""

from typing import Any

import pytest
import torch
from flwr.app import ConfigRecord, Message, RecordDict

from clients.flower_private import error_code
from clients.wire.records import REFUSED, WITHHELD, to_record, values_of
from strategies.exchange.exchange import MARGIN_SECONDS, Exchange
from strategies.exchange.guard import GuardedExchange, TooFewReplies, require_enough, update_bound
from tests.clients.federated.test_client import TASK
from tests.strategies.stub_grid import Clock, Rows, StubGrid, contents, reply_of

SILENT: list[tuple[float, int]] = []
FINE, RAISES, REFUSES = [(0.1, 0)], [(0.1, error_code("CLIENT_APP_RAISED_EXCEPTION"))], [(0.1, REFUSED)]


def guarded(clock: Clock, plans: list[list[tuple[float, int]]], min_usable: float) -> tuple[GuardedExchange, Rows]:
    """Partition p is node 50 - p: neither their order nor their numbers agree."""
    nodes, rows = {p: 50 - p for p in range(len(plans))}, Rows()
    grid: Any = StubGrid(clock, {nodes[p]: list(plan) for p, plan in enumerate(plans)})
    return GuardedExchange(Exchange(grid, nodes, 5.0), rows, min_usable), rows


def test_every_reply_is_handed_on_or_costs_its_client_a_row(clock: Clock) -> None:
    exchange, rows = guarded(clock, [FINE, RAISES, REFUSES, SILENT, FINE, FINE], 0.4)

    def fault_in(partition: int, reply: Message) -> str:
        assert partition == values_of(reply, "config")["for"], "whose reply it is"
        return "odd" if partition == 5 else ""

    answers = exchange.ask(TASK, "train", contents(4, 5, 2, 3, 1, 0), fault_in)
    assert list(answers) == [4, 0]
    assert [values_of(reply, "config")["for"] for reply in answers.values()] == [4, 0]
    assert answers.refused == {2: "stub"}
    assert rows.failures == [
        (5, "failed", "train: odd"),
        (2, "refused", "train: stub"),
        (3, "failed", "train: no reply within 5 s"),
        (1, "failed", "train: stub"),
    ]


def test_whoever_refuses_is_not_among_those_that_had_to_answer(clock: Clock) -> None:
    """Two of three: of the five asked it would be two fifths."""
    plans = [FINE, FINE, RAISES, REFUSES, REFUSES]
    assert set(guarded(clock, plans, 2 / 3)[0].ask(TASK, "train", contents(0, 1, 2, 3, 4))) == {0, 1}
    exchange, _ = guarded(clock, plans, 0.7)
    with pytest.raises(TooFewReplies, match=r"2 of 3 train replies are usable.*first reason: client 2: stub"):
        exchange.ask(TASK, "train", contents(0, 1, 2, 3, 4))


def test_where_all_may_fail_nothing_is_raised(clock: Clock) -> None:
    exchange, rows = guarded(clock, [RAISES, RAISES], 1.0)
    posted = exchange.post("evaluate", contents(0, 1))
    assert exchange.receive(TASK, posted, at_least=0.0) == {}
    assert len(rows.failures) == 2


def test_an_answer_that_leaves_something_out_is_used_and_says_so(clock: Clock) -> None:
    exchange, rows = guarded(clock, [FINE], 1.0)
    left_out = ConfigRecord({"publish-labels": "not told", "reveal-orders": "nor these"})
    answers = exchange.ask(TASK, "train.probe", {0: RecordDict({WITHHELD: left_out})})
    assert list(answers) == [0]
    assert rows.failures == [(0, "refused", "train.probe: not told"), (0, "refused", "train.probe: nor these")]


def test_a_round_needs_its_share_of_replies_and_one_at_least() -> None:
    for asked, good, share, enough in (
        (4, 2, 0.5, True), (4, 1, 0.5, False), (3, 2, 0.5, True), (3, 1, 0.5, False), (4, 1, 0.0, True),
        (4, 0, 0.0, False),  # of nobody's updates there is no mean
        (0, 0, 1.0, True),  # a client that refuses was not asked
    ):  # fmt: skip
        if enough:
            require_enough(TASK, "train", range(asked), range(good), share)
            continue
        with pytest.raises(TooFewReplies, match=f"{good} of {asked} train replies are usable"):
            require_enough(TASK, "train", range(asked), range(good), share)


def updates(norms: dict[int, float]) -> dict[int, Message]:
    """One of each norm, of 100 equal values."""
    records = {at: to_record({"w": torch.full((100,), norm / 10)}) for at, norm in norms.items()}
    return {at: reply_of(RecordDict({"arrays": record})) for at, record in records.items()}


def test_an_update_far_larger_than_the_others_is_refused_and_its_client_named() -> None:
    """What a plan can produce is none: shares of unequal size, a defence's noise at all clients, or at the only one."""
    weights, usual = {"w": torch.full((100,), 0.9)}, 3.0 * (9.0 + 1.0)
    ours: list[tuple[list[dict[int, float]], set[int]]] = [
        ([{0: 1.0, 1: 2.0, 2: 3e39, 3: 0.5}], {2}), ([{0: 1.0, 1: 1e30}], {1}), ([{0: 3e38}], {0}),
        ([{0: 3e38, 1: 1e3, 2: 1.2e3}], {0}), ([{0: 0.0, 1: 1.01 * usual, 2: 1.0}], {1}),
        # A single client of a later round, beside what the others sent before. Of two clients nobody can tell which one lies.
        ([{0: 1.0, 1: 1.0, 2: 1.0}, {0: 1e5}], {0}), ([{0: 0.0, 1: 1e5}], set()),
        ([{0: 0.9 * usual, 1: 0.0, 2: 0.0}], set()), ([{0: 1e5, 1: 9e4, 2: 2e6, 3: 0.0}], set()), ([{0: 1e5}], set()),
    ]  # fmt: skip
    for rounds, refused in ours:
        rows, nodes = Rows(), dict.fromkeys(range(4), 5)
        exchange = GuardedExchange(Exchange(None, nodes, 5.0), rows)  # type: ignore[arg-type]
        exchange.bounds["train"] = {"arrays": update_bound(weights)}
        found = [set(norms) - set(exchange.check(TASK, "train", [*norms], updates(norms))) for norms in rounds]
        assert (found[:-1], found[-1]) == ([set()] * (len(rounds) - 1), refused), rounds
        assert {client for client, *_ in rows.failures} == refused
        assert all("arrays: their norm is" in why for *_, why in rows.failures)


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
    assert exchange.config(TASK)["timeout"] == 5.0, "a client is told, and ends its own work by then"
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
