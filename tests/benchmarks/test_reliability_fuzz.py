"""The fuzzing pieces of benchmarks/reliability/reliability.py: a small slice of what they try, and that they see a fault
where there is one."""

from __future__ import annotations

import logging
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from flwr.app import ConfigRecord, Message, RecordDict
from reliability_files import READERS, Damaged, made, undamaged
from reliability_replies import RUNS, Case, unspoilt
from reliability_spoilt import WAYS, WHOLE, Drawn, spoilt

from clients.flower_private import act_as_task, from_wire, set_message_id, to_wire
from clients.task.scenarios import COMMON, client_sides
from clients.wire.records import metrics, to_record
from strategies.exchange import guard
from tests.strategies.exchange.test_hostile_replies import REFERENCE, reply_of

pytestmark = pytest.mark.long


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def drawn_reply(seed: int) -> tuple[Drawn, Message | None]:
    """A reply with records of every kind, spoilt."""
    act_as_task()
    content = RecordDict(
        {
            "arrays": to_record(REFERENCE),
            "metrics": metrics({"num-examples": 3, "x": 0.5}),
            "ledger": ConfigRecord({"": "{}"}),
        }
    )
    drawn = Drawn(random.Random(seed), [("another", RecordDict({"metrics": metrics({"x": 1.0})}))])
    request = Message(RecordDict(), dst_node_id=50, message_type="train")
    set_message_id(request, "m")
    return drawn, spoilt(drawn, reply_of(content, 50), request)


def test_every_way_is_drawn_described_and_crosses_the_wire_and_a_seed_repeats_it() -> None:
    said = []
    for seed in range(120):
        drawn, reply = drawn_reply(seed)
        assert drawn.said
        if not seed % 10:
            again, _ = drawn_reply(seed)
            assert (again.said, again.bad) == (drawn.said, drawn.bad)
        assert (reply is None) == (drawn.said == ["lost"])
        if reply is not None:
            from_wire(to_wire(reply))
        said.append(drawn.said[0])
    for begins in (
        "lost",
        "error",
        "refused",
        "flipped",
        "records",
        "names of",
        "'metrics' ",
        "'ledger' ",
        "in its place",
        "1 withheld",
    ):
        assert any(one.startswith(begins) for one in said), begins
    assert set(WAYS) | set(WHOLE) == {"arrays", "names", "numbers", "texts", "withheld", "records", "replayed", *WHOLE}
    assert any("of 2 arrays of 'arrays'" in one for one in said)


@pytest.mark.parametrize(
    ("run", "number"), [("split", 0), ("split-trained", 2), ("inference", 3), ("outsourced", 5), ("sums", 7)]
)
def test_a_spoilt_reply_has_its_row_and_touches_no_other(run: str, number: int) -> None:
    """Of other seeds than the script's usual ones; the script runs hundreds."""
    case = Case(9, number, (run,)).check()
    assert not case.faults, f"{case} -> {case.outcome}: {case.faults}"
    assert case.outcome


def test_what_a_guard_lets_through_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """A case that is refused as it should be, and the same with a server that checks nothing."""
    run = ("outsourced",)
    unspoilt(run[0])
    number = next(number for number in range(400) if _uploads_nan(Case(9, number, run)))
    assert Case(9, number, run).check().outcome == "refused"
    monkeypatch.setattr(guard.GuardedExchange, "_reason", lambda self, partition, reply, fault_in: "")
    assert Case(9, number, run).check().faults


def _uploads_nan(case: Case) -> bool:
    """Whether a case answers an upload with arrays that hold no numbers, and is not killed."""
    if case.kind != "train.upload" or case.kill:
        return False
    content = RecordDict(
        {"images": to_record(REFERENCE), "targets": to_record(REFERENCE), "metrics": metrics({"num-examples": 3})}
    )
    ahead = Drawn(random.Random(), [])
    ahead.draw.setstate(case.draw.getstate())
    reply = spoilt(ahead, reply_of(content, 50), Message(RecordDict(), dst_node_id=50, message_type="train"))
    return reply is not None and ahead.bad and "arrays of" in ahead.said[0]


@pytest.fixture(scope="module")
def originals(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("files")
    made(folder, ("report", "compare", "run -s defenses=ATS"))
    return folder


@pytest.mark.parametrize("reader", ["report", "compare", "run -s defenses=ATS"])
def test_damaged_files_are_read_or_refused(originals: Path, reader: str) -> None:
    expected: Any = undamaged(originals, READERS[reader])
    for number in range(4):
        case = Damaged(9, number, originals, (reader,)).check(expected)
        assert not case.fault, f"{case} -> {case.outcome}: {case.fault}"
        assert case.outcome


def test_all_kinds_of_messages_of_all_scenarios_are_spoilt() -> None:
    handlers = {kind for side in client_sides().values() for kind in side.handlers}
    assert {kind for run in RUNS for kind, _ in unspoilt(run)[0]} == COMMON | handlers
