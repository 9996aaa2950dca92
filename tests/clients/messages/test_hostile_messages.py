"""A server may send anything: a node answers with an error that says why, or does what it is asked; it never runs what came."""

import contextlib
import json
import math
import re
import signal
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from hypothesis import example, given, settings
from hypothesis import strategies as st

from clients.app import app
from clients.data.card import DataCard
from clients.federated import messages as federated_messages
from clients.flower_private import act_as_task, set_message_id
from clients.messages.node import client_of, watchdog
from clients.process.machine import memory_of_machine
from clients.task.scenarios import client_sides, read_task
from clients.task.task import TaskError
from clients.wire.records import to_record, to_tensors
from clients.wire.schema import fields_in
from strategies.external_app.replies import reported_budgets
from tests import hostile
from tests.bounded import bounded
from tests.clients.federated.test_client import TASK, weights

few = settings(max_examples=100, derandomize=True, database=None)
CARD = DataCard(10, (1, 28, 28), (0.5,), (0.5,))
SMALL = TASK.but(train_limit=8, test_limit=8, batch_size=4, probe_targets=1, probe_images=1, card=CARD)
PLAIN: dict[str, tuple[type, ...]] = {"str": (str,), "bool": (bool,), "int": (int,), "float": (float, int)}
MINE = RecordDict({"indices": to_record({"train": torch.arange(4), "test": torch.arange(4)})})

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=6,
)


@st.composite
def task_texts(draw: st.DrawFn) -> str:
    if draw(st.integers(0, 4)) == 0:
        return draw(st.text(max_size=20) | json_values.map(json.dumps))
    values = json.loads(SMALL.to_json())
    place = draw(st.sampled_from([values, values["plan"], values["plan"]["card"]]))
    name = draw(st.sampled_from(sorted(place)) | st.text(max_size=6))
    if draw(st.booleans()):
        place[name] = draw(json_values)
    else:
        place.pop(name, None)
    return json.dumps(values)


@few
@given(task_texts())
@example(hostile.BOMB)  # RecursionError
@example("9" * 10_000)  # more digits than Python reads
@example("[]")  # no object
@example('{"plan": {"scenario": ["federated"]}}')  # no key of a dictionary
@example(json.dumps({**json.loads(SMALL.to_json()), "round": "1"}))
@example(SMALL.to_json().replace("[1, 28, 28]", "[1, 1000000, 1000000]"))
@example(SMALL.to_json())
def test_a_text_is_a_task_or_a_task_error(text: str) -> None:
    try:
        task = read_task(text)
    except TaskError:
        return
    except RuntimeError as error:  # of a scenario that this node does not know
        if "not known to this node" not in str(error):
            raise
        return
    assert read_task(task.to_json()) == task
    assert type(task.round) is int
    assert type(task.learning_rate) in PLAIN["float"]
    for name, spec in fields_in(type(task.plan)).items():
        kind = type(getattr(task.plan, name))
        assert kind in PLAIN.get(getattr(spec.annotation, "__name__", ""), (kind,))


@contextmanager
def little_memory() -> Iterator[None]:
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < 2**24
    finally:
        tracemalloc.stop()


def ledger_sent_to_a_node(text: str) -> object:
    act_as_task()
    message = Message(RecordDict({"ledger": ConfigRecord({"": text})}), dst_node_id=5, message_type="train")
    return federated_messages._ledger(message, Context(1, 5, {}, RecordDict(), {}), "")


def test_json_that_is_much_more_in_memory_is_not_read() -> None:
    for read in (read_task, DataCard.from_json, ledger_sent_to_a_node):
        with little_memory(), pytest.raises(ValueError, match="3000004 characters of JSON came; at most 1048576 are"):
            read(hostile.WIDE)
    with little_memory():
        assert reported_budgets(hostile.WIDE) == []


def ask(message_type: str, content: RecordDict, node: dict[str, Any] | None = None) -> Message:
    act_as_task()
    config = {"partition-id": 0, "num-partitions": 1, "randomness": "seed", **(node or {})}
    message = Message(content, dst_node_id=5, message_type=message_type)
    set_message_id(message, "asked")
    return app(message, Context(1, 5, config, RecordDict(dict(MINE)), {}))


def content(**config: Any) -> dict[str, Any]:
    given = {"task": SMALL.to_json(), "timeout": 20.0, **config}
    return {"config": ConfigRecord(given), "arrays": to_record(weights(SMALL))}


def test_tensors_come_back_as_they_were_sent() -> None:
    transposed = torch.arange(6.0).view(2, 3).T
    for tensor in (torch.tensor(True), torch.tensor(3), torch.zeros(0, 2), transposed, torch.zeros(1)):
        (found,) = to_tensors(to_record({"name": tensor})).values()
        assert (found.shape, found.dtype) == (tensor.shape, tensor.dtype)
        assert torch.equal(found, tensor)


TOO_MUCH = ArrayRecord({"x": hostile.raw(hostile.npy("<f4", hostile.HUGE))})


@settings(few, max_examples=40)
@given(
    st.sampled_from(["train", "train.probe", "evaluate", "query.setup", "query.audit"]),
    hostile.contents({**content(observation="probe", kind="images", guesses=1), **MINE}),
)
@example("train", RecordDict(content(task=hostile.BOMB)))
@example("train", RecordDict({**content(), "ledger": ConfigRecord({"": hostile.BOMB})}))
@example("train", RecordDict({**content(), "arrays": ArrayRecord({"x": hostile.pickled()})}))
@example("evaluate", RecordDict({**content(), "arrays": TOO_MUCH}))
@example("query.audit", RecordDict(content(observation="probe", kind="images", guesses=10**12)))
@example("query.setup", RecordDict({**content(), "indices": ArrayRecord({"train": hostile.pickled()})}))
def test_a_node_answers_or_says_why_not(message_type: str, sent: RecordDict) -> None:
    # It runs nothing; Flower sends the words of any exception back as an error.
    try:
        reply = ask(message_type, sent)
        assert reply.has_content() or reply.error.reason
    except (ValueError, RuntimeError, TimeoutError) as error:
        if not str(error):
            raise
    assert not hostile.Pickled.executed


def test_rows_that_are_no_numbers_of_examples_are_refused() -> None:
    floats = Array(torch.ones(2).numpy())
    bad = RecordDict({**content(), "indices": ArrayRecord({"train": floats, "test": hostile.pickled()})})
    with pytest.raises(ValueError, match="holds no numbers that can be read"):
        ask("query.setup", bad)
    bad["indices"] = to_record({"train": torch.tensor([-1]), "test": torch.arange(4)})
    with pytest.raises(ValueError, match="expected two rows of numbers from 0 on"):
        ask("query.setup", bad)


BEYOND: list[Any] = [-1, -5e-324, 1e300, 2**63, 2**70, 10**400, math.inf, math.nan]


def sent(**changes: Any) -> RecordDict:
    values = json.loads(SMALL.to_json())
    for name, value in changes.items():
        (values if name in values else values["plan"])[name] = value
    return RecordDict(content(task=json.dumps(values)))


def refusal(message: RecordDict, size: int = 2**28) -> str:
    with bounded(60, size), pytest.raises((ValueError, RuntimeError)) as told:  # what hangs is ended after a minute
        ask("train", message)
    assert len(str(told.value)) < 1000
    return str(told.value)


def test_a_node_refuses_every_number_beyond_its_limits() -> None:
    for side in client_sides().values():
        for name, spec in fields_in(side.plan).items():
            number = spec.annotation in (int, float)
            assert not number or spec.metadata, (side.name, name)
            if side.name == "federated" and number:
                for value in BEYOND:
                    if spec.annotation is float or type(value) is int:
                        told = refusal(sent(**{name: value}))
                        assert re.search(rf"{name} is .*; allowed: ", told), (name, value, told)


def test_a_node_names_what_it_refuses(subtests: pytest.Subtests) -> None:
    for name, value, allowed in (
        ("image_size", 4097, "is 4097; allowed: 0, or a whole number from 2 to 4096"),
        ("batch_size", 0, "is 0; allowed: a whole number from 1"),
        ("momentum", 1.0, r"is 1\.0; allowed: a number of at least 0 and below 1"),
        ("milestones", list(range(4097)), "has a length of 4097; allowed: at most 4096"),
        ("model", "x" * 4097, "has a length of 4097; allowed: at most 4096"),
        ("pipeline", "Clip();" * 201, "holds 201 statements; allowed: at most 200"),
        ("pipeline", "Clip();" * 3, "holds 3 pipelines where one is expected"),
        ("pipeline", " | ".join(["Blur()"] * 33), r"joins 33 stages by \|; allowed: at most 32"),
        ("pipeline", "#" * 200_001, "has 200001 characters; allowed: at most 200000"),
        ("pipeline", "Blur(std=4097)", "std is 4097.*; allowed: 0, or a number from 1e-12 to 4096"),
        ("pipeline", "ATS(policies='" + "3-" * 16 + "3')", "a policy of 17 transforms; allowed: at most 16"),
    ):  # fmt: skip
        told = refusal(sent(**{name: value}))
        with subtests.test(allowed, name=name):
            assert re.search(allowed, told), told
            assert name == "pipeline" or name in told


def test_a_node_refuses_a_model_that_it_cannot_hold_before_it_is_built() -> None:
    # Each number is allowed by itself; together they took 8 GB and 43 s, or more.
    for changes in ({"model": "cnn", "batch_size": 2**20}, {"model": "mlp", "width": 4096}):
        told = refusal(sent(**changes, image_size=4096, card=None), size=2**30)  # that of the resized images
        assert re.search("image-size is 4096.*Lower image-size", told), told


def test_a_deployed_node_holds_no_more_images_than_a_part_of_its_memory(tmp_path: Path) -> None:
    # Whatever image-memory the server sends; what is more is read batch by batch.
    node = {"partition-id": 0, "num-partitions": 1, "randomness": "secret", "secret-dir": str(tmp_path)}
    for sent_memory, expected in ((0.5, 0.5), (1e6, memory_of_machine() / 2**32)):
        task = SMALL.but(image_memory=sent_memory)
        message = Message(RecordDict(content(task=task.to_json())), dst_node_id=5, message_type="train")
        context = Context(1, 5, dict(node), RecordDict(dict(MINE)), {})
        assert client_of(message, context).task.plan.image_memory == pytest.approx(expected)


def test_the_nodes_own_limit_holds_whatever_time_the_server_sends() -> None:
    # A server that sets none could keep a node busy for ever; timers count microseconds, and what is less was no limit at all.
    busy = SMALL.but(local_epochs=10**6).to_json()
    for timeout, told in {
        **dict.fromkeys([0.0, math.inf, 50.0], r"client ran longer than max-seconds = 0\.3 s"),
        **dict.fromkeys([5e-324, 1e-9], r"client ran longer than client-timeout = 0\.001 s"),
        **dict.fromkeys([math.nan, -1.0, "soon"], r"client-timeout is .*; allowed: seconds, 0 for no limit"),
    }.items():
        with pytest.raises(Exception, match=told):
            ask("train", RecordDict(content(task=busy, timeout=timeout)), {"max-seconds": 0.3})


def limited(seconds: float) -> Message:
    return Message(RecordDict({"config": ConfigRecord({"timeout": seconds})}), dst_node_id=5, message_type="train")


def test_code_that_catches_the_first_alarm_is_given_up_at_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("clients.messages.node.AGAIN_SECONDS", 0.05)
    caught = []

    def stubborn(message: Message, context: Context) -> Message:
        with contextlib.suppress(Exception):
            caught.append(True)
            while True:
                pass
        while True:
            pass

    with pytest.raises(TimeoutError, match="client ran longer than client-timeout"):
        watchdog(limited(0.01), Context(1, 5, {}, RecordDict(), {}), stubborn)
    assert caught
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


def test_an_alarm_inside_no_grad_leaves_the_next_client_its_gradients() -> None:
    def interrupted(message: Message, context: Context) -> Message:
        torch.set_grad_enabled(False)  # as an alarm between ``no_grad``'s start and the block that ends it
        raise TimeoutError

    with pytest.raises(TimeoutError):
        watchdog(limited(0.5), Context(1, 5, {}, RecordDict(), {}), interrupted)
    assert torch.is_grad_enabled()
