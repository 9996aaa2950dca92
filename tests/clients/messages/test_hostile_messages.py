"""A server may send anything: a node answers with an error that says why, or does what it is asked; it never runs what came."""

from __future__ import annotations

import json
import re
import time
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields
from typing import Any

import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from clients.app import app
from clients.data.card import DataCard
from clients.federated import messages as federated_messages
from clients.flower_private import act_as_task, set_message_id
from clients.secrets.policy import AnswerPolicy, RefusedError, allowed_pipelines
from clients.task.scenarios import read_task
from clients.task.task import TaskError
from clients.wire.records import to_record
from strategies.external_app.replies import reported_budgets
from tests import hostile
from tests.clients.federated.test_client import TASK, weights

few = settings(max_examples=150, deadline=None, derandomize=True, database=None)
messages = settings(few, max_examples=40, suppress_health_check=[HealthCheck.too_slow])
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
    """A task with something else in it, or no task at all."""
    if draw(st.integers(0, 4)) == 0:
        return draw(st.text(max_size=20) | json_values.map(json.dumps))
    values = json.loads(SMALL.to_json())
    for _ in range(draw(st.integers(1, 2))):
        place = draw(st.sampled_from([values, values["plan"], values["plan"]["card"]]))
        if isinstance(place, dict):
            name = draw(st.sampled_from(sorted(place)) | st.text(max_size=6))
            if draw(st.booleans()):
                place[name] = draw(json_values)
            else:
                place.pop(name, None)
        if not isinstance(values.get("plan"), dict) or not isinstance(values["plan"].get("card"), dict):
            break
    return json.dumps(values)


def ledger_sent_to_a_node(text: str) -> object:
    act_as_task()
    message = Message(RecordDict({"ledger": ConfigRecord({"": text})}), dst_node_id=5, message_type="train")
    return federated_messages._ledger(message, Context(1, 5, {}, RecordDict(), {}), "")


@few
@given(task_texts())
@example(hostile.BOMB)  # RecursionError
@example("9" * 10_000)  # more digits than Python reads
@example("[]")  # no object
@example('{"plan": {"scenario": ["federated"]}}')  # no key of a dictionary
@example(json.dumps({**json.loads(SMALL.to_json()), "round": "1"}))
@example(SMALL.to_json().replace('"rounds": 2', '"rounds": "2"'))
@example(SMALL.to_json().replace('"seed": 3', '"seed": null'))
@example(SMALL.to_json().replace("[1, 28, 28]", "[1, 1000000, 1000000]"))
def test_a_text_is_a_task_or_a_task_error(text: str) -> None:
    try:
        task = read_task(text)
    except TaskError:
        return
    except (ValueError, RuntimeError) as error:  # of the card, and of a scenario that nobody knows
        if not re.search("the card|which no data set has|not known to this node", str(error)):
            raise
        return
    assert read_task(task.to_json()) == task
    assert type(task.round) is int
    assert type(task.learning_rate) in PLAIN["float"]
    for spec in fields(task.plan):
        assert type(getattr(task.plan, spec.name)) in PLAIN.get(str(spec.type), (type(getattr(task.plan, spec.name)),))


@contextmanager
def little_memory() -> Iterator[None]:
    """A few copies of the text at most."""
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < 2**24
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("read", [read_task, DataCard.from_json, ledger_sent_to_a_node])
def test_json_that_is_much_more_in_memory_is_not_read(read: Callable[[str], object]) -> None:
    with little_memory(), pytest.raises(ValueError, match="3000004 characters of JSON came; at most 1048576 are read"):
        read(hostile.WIDE)


def test_budgets_that_are_much_more_in_memory_are_none() -> None:
    with little_memory():
        assert reported_budgets(hostile.WIDE) == []


def test_tasks_of_every_scenario_are_read_as_they_were_written() -> None:
    assert read_task(SMALL.to_json()) == SMALL
    with pytest.raises(TaskError, match="the task is no JSON: RecursionError"):
        read_task(hostile.BOMB)
    with pytest.raises(TaskError, match="rounds is '2', expected int"):
        read_task(SMALL.to_json().replace('"rounds": 2', '"rounds": "2"'))
    with pytest.raises(TaskError, match="the task is no JSON object"):
        read_task(None)


def ask(message_type: str, content: RecordDict, node: dict[str, Any] | None = None) -> Message:
    """What Flower does with a message: an exception of the app is an error reply."""
    act_as_task()
    context = Context(
        1, 5, {"partition-id": 0, "num-partitions": 1, "randomness": "seed", **(node or {})}, RecordDict(dict(MINE)), {}
    )
    message = Message(content, dst_node_id=5, message_type=message_type)
    set_message_id(message, "asked")
    return app(message, context)


def content(**config: Any) -> dict[str, Any]:
    return {
        "config": ConfigRecord({"task": SMALL.to_json(), "timeout": 20.0, **config}),
        "arrays": to_record(weights(SMALL)),
    }


@messages
@given(
    st.sampled_from(["train", "train.probe", "evaluate", "query.setup", "query.audit"]),
    hostile.contents({**content(observation="probe", kind="images", guesses=1), **MINE}),
)
@example("train", RecordDict(content(task=hostile.BOMB)))
@example("train", RecordDict(content(task="{}")))
@example("train", RecordDict({**content(), "ledger": ConfigRecord({"": hostile.BOMB})}))
@example("train", RecordDict({**content(), "arrays": ArrayRecord({"x": hostile.pickled()})}))
@example(
    "evaluate", RecordDict({**content(), "arrays": ArrayRecord({"x": hostile.raw(hostile.npy("<f4", hostile.HUGE))})})
)
@example("query.audit", RecordDict(content(observation="probe", kind="images", guesses=10**12)))
@example("query.setup", RecordDict({**content(), "indices": ArrayRecord({"train": hostile.pickled()})}))
def test_a_node_answers_or_says_why_not(message_type: str, sent: RecordDict) -> None:
    """In little time, and running nothing; Flower sends the words of any exception back as an error."""
    start = time.process_time()
    try:
        reply = ask(message_type, sent)
        assert reply.has_content() or reply.error.reason
    except (ValueError, RuntimeError, TimeoutError) as error:
        if not str(error):
            raise
    assert time.process_time() - start < 30
    assert not hostile.Pickled.executed


@pytest.mark.parametrize("timeout", [float("nan"), -1.0, "soon", [1.0]])
def test_a_time_that_is_none_is_refused(timeout: object) -> None:
    with pytest.raises(ValueError, match=r"client-timeout is .*; allowed: seconds, 0 for no limit"):
        ask("evaluate", RecordDict(content(timeout=timeout)))


@pytest.mark.parametrize("timeout", [0.0, float("inf"), 1e300, 50.0])
def test_the_nodes_own_limit_holds_whatever_the_server_says(timeout: float) -> None:
    """A server that sets none could keep a node busy for ever."""
    busy = SMALL.but(local_epochs=10**6)
    sent = RecordDict(content(task=busy.to_json(), timeout=timeout))
    start = time.process_time()
    with pytest.raises(Exception, match=r"client ran longer than max-seconds = 0\.3 s"):
        ask("train", sent, {"max-seconds": 0.3})
    assert time.process_time() - start < 20


@few
@given(
    st.dictionaries(st.sampled_from(["probes", "transmissions", "repeats", "pipelines", "share-images"]), hostile.plain)
)
def test_a_nodes_configuration_is_read_or_refused(config: dict[str, Any]) -> None:
    try:
        AnswerPolicy.of(config, simulated=False)
        allowed_pipelines(config)
    except (ValueError, RefusedError) as error:
        if not re.search("defence|" + "|".join(config), str(error)):
            raise


def test_rows_that_are_no_numbers_of_examples_are_refused() -> None:
    bad = RecordDict(
        {**content(), "indices": ArrayRecord({"train": Array(torch.ones(2).numpy()), "test": hostile.pickled()})}
    )
    with pytest.raises(ValueError, match="holds no numbers that can be read"):
        ask("query.setup", bad)
    bad["indices"] = to_record({"train": torch.tensor([-1]), "test": torch.arange(4)})
    with pytest.raises(ValueError, match="expected two rows of numbers from 0 on"):
        ask("query.setup", bad)
