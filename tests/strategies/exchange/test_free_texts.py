"""What a client sends in its own words or under its own names is bounded in number and length before it becomes rows."""

from typing import Any

import torch
from flwr.app import ConfigRecord, Error, Message, MetricRecord, RecordDict

from clients.wire.records import MAX_REASON, REFUSED, WITHHELD, metrics, reason_of, to_record
from clients.wire.texts import MOST_JSON
from strategies.exchange.faults import MOST_NAMES, MOST_VALUES, oversized
from strategies.exchange.guard import MOST_WITHHELD
from strategies.federated.replies import MOST_REPORTED, alike, reported_by_most
from tests.strategies.exchange.test_hostile_replies import NUMBERS, checked, valid
from tests.strategies.stub_grid import Rows, reply_of

BREAKS = "\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029\r\n\x1b\u202e"


def rows_of(content: RecordDict) -> list[dict[str, Any]]:
    rows = Rows()
    checked(rows, "train.probe", None, content)
    return rows.found


def test_a_reason_is_one_printable_line_whatever_the_client_wrote() -> None:
    for code in (REFUSED, 1):
        reply = Message(Error(code, f"first\nlast {BREAKS}end"), reply_to=reply_of(RecordDict(), 50))
        assert reason_of(reply).isprintable()
        assert len(reason_of(reply)) <= MAX_REASON


def test_what_honest_clients_send_is_within_the_bounds() -> None:
    scores = metrics({f"score-{at}": [0.5] * 100 for at in range(200)})
    ledger = ConfigRecord({"DPSGD() | " * 300: "x" * MOST_JSON})
    pictures = to_record({f"original-{at}": torch.zeros(2, 1, 4, 4) for at in range(64)})
    assert oversized(RecordDict({**valid(), "scores": scores, "ledger": ledger, "pictures": pictures})) == ""


def test_the_names_that_clients_report_are_bounded_and_the_rest_is_counted() -> None:
    made_up = {f"m{at}": 1.0 for at in range(3000)} | {"x" * 5000: 1.0, f"a{BREAKS}": 1.0}
    reply = reply_of(RecordDict({**valid(), "metrics": metrics({**NUMBERS, **made_up})}), 50)
    told, dropped = reported_by_most({0: reply})
    assert len(told) == MOST_REPORTED
    assert all(name.isprintable() and len(name) <= 200 for name in told)
    assert dropped == 3003 - MOST_REPORTED
    sent = alike(reply, told).content["metrics"]
    assert len(sent) == MOST_REPORTED + 1  # type: ignore[arg-type]


def test_rows_of_what_was_withheld_are_bounded_short_and_one_line_and_the_rest_is_counted() -> None:
    for count in (1, MOST_WITHHELD, MOST_WITHHELD + 1, 3000):
        found = rows_of(RecordDict({WITHHELD: ConfigRecord({f"key-{at}": f"reason {at}" for at in range(count)})}))
        assert [row["status"] for row in found] == ["refused"] * len(found)
        assert len(found) == min(count, MOST_WITHHELD) + (count > MOST_WITHHELD)
        assert count <= MOST_WITHHELD or f"{count - MOST_WITHHELD} more" in found[-1]["message"]
    values: list[Any] = [["x"] * 10**5, 10**18, 1e308, b"\xff" * 10**5, True, "x" * 10**6, BREAKS]
    for value in values:
        (row,) = rows_of(RecordDict({WITHHELD: ConfigRecord({"key": value})}))
        assert 0 < len(row["message"]) <= MAX_REASON
        assert row["message"].isprintable()


def test_a_reply_of_more_than_anybody_means_well_is_refused_with_the_number() -> None:
    big: list[dict[str, Any]] = [
        {"extra": MetricRecord({f"n{at}": 1.0 for at in range(MOST_NAMES + 1)})},
        {"extra": ConfigRecord({"text": "x" * (MOST_JSON + 1)})},
        {"extra": MetricRecord({"numbers": [0.0] * (MOST_VALUES + 1)})},
        {"extra": ConfigRecord({"data": b"x" * (MOST_JSON + 1)})},
        {"extra": ConfigRecord({"x" * (2**16 + 1): 1})},
        {f"record-{at}": ConfigRecord({"a": 1}) for at in range(MOST_NAMES + 1)},
        {f"record-{at}": ConfigRecord({"a": "x" * MOST_JSON}) for at in range(65)},
        {WITHHELD: ConfigRecord({f"key-{at}": "x" * 1000 for at in range(50_000)})},
    ]
    for records in big:
        content = RecordDict({**valid(), **records})
        assert oversized(content)
        (row,) = rows_of(content)
        assert row["status"] == "failed"
        assert len(row["message"]) <= MAX_REASON
        assert "at most" in row["message"]
