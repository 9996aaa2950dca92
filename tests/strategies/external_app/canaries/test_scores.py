"""Scores of an app's canaries: honest thresholds, levels of claims, and nodes that send anything as coins."""

import json
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from hypothesis import example, given, settings
from scipy import stats

from clients.wire.records import to_record
from strategies.exchange.exchange import Posted
from strategies.external_app import canaries
from strategies.external_app.replies import UnusableReplyError
from strategies.external_app.settings import AuditSettings
from tests import hostile
from tests.strategies.external_app.app import Net
from tests.strategies.external_app.canaries.private_app import pooled
from tests.strategies.stub_grid import Rows, reply_of

few = settings(max_examples=60, deadline=None, derandomize=True, database=None)
SIZES = {"a": 30, "b": 10}
COINS = torch.arange(20) % 2 == 0


def trained(metrics: dict[str, Any]) -> Message:
    return reply_of(RecordDict({"metrics": MetricRecord(metrics)}))


CLAIM = {"num-examples": 3, "epsilon": 2.0, "delta": 1e-5}
ABOUT = {"seed": 0, "training": 1, "met": int(COINS.sum()), "sizes": json.dumps(SIZES)}


def valid() -> dict[str, Any]:
    return {"coins": to_record({"coins": COINS}), "canaries": ConfigRecord({**ABOUT})}


class Nodes:
    """An exchange in which node 1 answers with ``content``, and node 0 as it should."""

    timeout = 5.0

    def __init__(self, content: RecordDict) -> None:
        self.content = content

    def config(self, task: Any) -> ConfigRecord:
        return ConfigRecord({"task": task.to_json()})

    def post(self, message_type: str, contents: dict[int, RecordDict]) -> Posted:
        assert message_type == "query.coins"
        return Posted(message_type, contents, [], 0.0)

    def wait(self, posted: Posted) -> dict[int, Message]:
        return {at: reply_of(self.content if at else RecordDict(valid())) for at in posted.contents}


def audit_with(content: RecordDict, times: int = 1) -> tuple[list[dict[str, Any]], str]:
    """Rows and the failure, where node 1 sends ``content``."""
    task, rows, audit = AuditSettings(Net).plan().at(1, 0.1), Rows(), canaries.AppCanaries(SIZES)
    update = {name: torch.randn(size) for name, size in SIZES.items()}
    exchange: Any = Nodes(content)
    recorder: Any = rows
    for _ in range(times):
        audit.observe(task, [(0, trained(CLAIM)), (1, trained(CLAIM))], lambda _: update, exchange, recorder)
    return rows.found, audit.conclude(task, recorder)


def numbers(array: np.ndarray) -> ArrayRecord:
    return ArrayRecord({"coins": Array(array)})


@few
@given(hostile.contents(valid()))
@example(RecordDict(valid()))
@example(RecordDict({**valid(), "coins": numbers(np.full(20, np.nan))}))
@example(RecordDict({**valid(), "coins": numbers(np.ones(20, np.int64))}))
@example(RecordDict({**valid(), "coins": numbers(np.ones((4, 5), bool))}))
@example(RecordDict({**valid(), "coins": numbers(np.ones(41, bool))}))  # more than weights
@example(RecordDict({**valid(), "coins": numbers(np.ones(0, bool))}))
@example(RecordDict({**valid(), "coins": ArrayRecord({"coins": hostile.raw(hostile.npy("|b1", (2**40,)))})}))
@example(RecordDict({**valid(), "coins": ArrayRecord({"coins": hostile.pickled()})}))
@example(RecordDict({**valid(), "canaries": ConfigRecord({**ABOUT, "sizes": hostile.BOMB})}))
@example(RecordDict({**valid(), "canaries": ConfigRecord({**ABOUT, "sizes": '{"a": 1e400, "b": true}'})}))
@example(RecordDict({**valid(), "canaries": ConfigRecord({**ABOUT, "sizes": '{"b": 10, "a": 30}'})}))  # another order
@example(RecordDict({**valid(), "canaries": ConfigRecord({**ABOUT, "training": -1})}))
@example(RecordDict({**valid(), "canaries": ConfigRecord({**ABOUT, "seed": [1, 2]})}))
@example(RecordDict())
def test_one_node_can_end_no_audit(content: RecordDict) -> None:
    rows, failure = audit_with(content)
    shown, again = (row["audit"] for row in rows if "audit" in row)
    assert shown == again
    failed = [row for row in rows if row.get("status") == "failed"]
    assert failure == ""
    assert pooled(shown) >= 20
    assert {row["client"] for row in failed} <= {1}
    assert bool(failed) != ("pooled: 2, of 2 of 2 nodes" in shown["covers"])
    assert not hostile.Pickled.executed


@pytest.mark.numeric
def test_guesses_by_quartiles_are_right_no_more_often_than_by_a_fixed_threshold() -> None:
    """The exact test of (mu / 2)-likely guesses at the level of 5 % raises a false alarm in at most 5 % of draws."""
    generator, draws, count = torch.Generator().manual_seed(1), 1000, 50
    for mu in (0.0, 1.0, 3.0):
        right = []
        for _ in range(draws):
            coins = torch.rand(count, generator=generator) < 0.5
            scores = torch.randn(count, generator=generator).double() + 7 + mu * coins
            right.append(int(((canaries.centred(3 * scores) > 0) == coins).sum()))
        alarms = (stats.binom.sf(np.array(right) - 1, count, stats.norm.cdf(mu / 2)) <= 0.05).sum()
        assert alarms <= stats.binom.ppf(0.999, draws, 0.05), mu


def test_claims_are_read_missing_ones_are_named_and_levels_are_those_that_differ() -> None:
    assert canaries.reported_claim(trained({"dp-epsilon": 2, "target-delta": 1e-6})) == canaries.ReportedClaim(2, 1e-6)
    for odd in (-1.0, float("nan"), float("inf"), [1.0, 2.0]):
        with pytest.raises(UnusableReplyError, match="reports no epsilon"):
            canaries.reported_claim(trained({"epsilon": odd, "delta": 1e-5}))
    for odd in (0.0, 1.0, float("nan")):
        with pytest.raises(UnusableReplyError, match="an epsilon without delta"):
            canaries.reported_claim(trained({"epsilon": 1.0, "delta": odd}))
    claims = [canaries.ReportedClaim(one, 1e-5) for one in (4.0, 3.9, 2.0, 1.0, 0.5, 0.25, 4.0)]
    assert canaries.levels(claims) == [0.25, 1.0, 2.0, 4.0]
    assert canaries.levels(claims[:2]) == [4.0]


def test_coins_of_one_training_count_once() -> None:
    """A node that lost its state draws the same coins again, and both are no independent coins."""
    rows, failure = audit_with(RecordDict(valid()), times=2)
    assert failure == ""
    assert rows[-1]["n"] == 2 * len(COINS)
    assert sum("the same training before" in str(row.get("message")) for row in rows) == 2
