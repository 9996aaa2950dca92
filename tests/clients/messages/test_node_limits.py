"""What a server asks for beyond a node's own limits is refused by the node, by name, before any work; sent as messages are."""

from __future__ import annotations

import contextlib
import json
import math
import re
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from flwr.app import ConfigRecord, Context, Message, RecordDict

from clients.messages.node import client_of, watchdog
from clients.process.machine import memory_of_machine
from clients.task.scenarios import client_sides, read_task
from clients.task.task import TaskError
from clients.wire.limits import LIMITS
from tests.bounded import bounded
from tests.clients.federated.test_client import TASK
from tests.clients.messages.test_hostile_messages import MINE, SMALL, ask, content

FIELDS = sorted(
    spec.name
    for spec in client_sides()["federated"].plan.__dataclass_fields__.values()
    if str(spec.type) in ("int", "float")
)
BEYOND: list[Any] = [-1, -5e-324, 1e300, 2**63, 2**70, 10**400, math.inf, math.nan]


def sent(**changes: Any) -> RecordDict:
    """A training message whose task has other values."""
    values = json.loads(SMALL.to_json())
    place = {name: values if name in values else values["plan"] for name in changes}
    for name, value in changes.items():
        place[name][name] = value
    return RecordDict(content(task=json.dumps(values)))


def refused(message: RecordDict, *words: str, size: int = 2**28) -> None:
    with bounded(5, size), pytest.raises((ValueError, RuntimeError)) as told:
        ask("train", message)
    assert all(re.search(word, str(told.value)) for word in words), told.value
    assert len(str(told.value)) < 1000


@pytest.mark.parametrize("name", FIELDS)
def test_a_node_refuses_every_number_beyond_its_limits(name: str) -> None:
    whole = type(getattr(SMALL.plan, name)) is int
    for value in BEYOND:
        if not whole or type(value) is int:
            refused(sent(**{name: value}), rf"{name} is |no JSON: ValueError")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"image_size": 4097}, "image_size is 4097; allowed: 0, or at least 2, at most 4096"),
        ({"image_size": 1}, "image_size is 1; allowed"),
        ({"batch_size": 0}, "batch_size is 0; allowed: at least 1"),
        ({"batch_size": 2**21}, "batch_size is 2097152; allowed"),
        ({"local_epochs": 2**62}, "local_epochs is 4611686018427387904; allowed"),
        ({"local_steps": 2**62}, "local_steps is 4611686018427387904; allowed"),
        ({"rounds": 10**7}, "rounds is 10000000; allowed"),
        ({"round": 2**62}, "round is 4611686018427387904; allowed"),
        ({"learning_rate": 1e7}, "learning_rate is 10000000.0; allowed"),
        ({"width": 10**6}, "width is 1000000; allowed: at least 0, at most 65536"),
        ({"image_memory": 1e7}, "image_memory is 10000000.0; allowed"),
        ({"image_memory": 0.0}, "image_memory is 0.0; allowed"),
        ({"milestones": list(range(5000))}, "milestones has a length of 5000; allowed: at most 4096"),
        ({"model": "x" * 5000}, "model has a length of 5000; allowed: at most 4096"),
        ({"data_dir": "/" + "x" * 5000}, "data_dir has a length of 5001; allowed: at most 4096"),
        ({"pipeline": "Clip();" * 20_000}, "holds 20000 statements; allowed: at most 200"),
        ({"pipeline": "Clip();" * 3}, "holds 3 pipelines where one is expected"),
        ({"pipeline": " | ".join(["Blur()"] * 100)}, r"joins 100 stages by \|; allowed: at most 32"),
        ({"pipeline": "#" * 300_000}, "has 300000 characters; allowed: at most 200000"),
        ({"pipeline": "Blur(std=1e9)"}, "std is 1000000000.0; allowed: 0, or a number from 1e-12 to 4096"),
        ({"pipeline": "InstaHide(num_mixed=1000000)"}, "num_mixed is 1000000; allowed: a whole number from 1 to 32"),
        ({"pipeline": "DPSGD(noise_multiplier=1e-160)"}, "noise_multiplier is 1e-160; allowed: 0, or a number from 0.0001"),
        ({"pipeline": "ATS(policies='" + "3-" * 60_000 + "3')"}, "a policy of 60001 transforms; allowed: at most 16"),
    ],
)  # fmt: skip
def test_a_node_names_what_it_refuses(changes: dict[str, Any], words: str) -> None:
    refused(sent(**changes), words)


@pytest.mark.parametrize(
    "changes",
    [
        {"model": "cnn", "image_size": 4096, "batch_size": 2**20},
        {"model": "mlp", "image_size": 4096, "width": 4096},
        {"model": "torchvision:vgg16", "image_size": 4096, "batch_size": 2**20},
    ],
)
def test_a_node_refuses_a_model_that_it_cannot_hold_before_it_is_built(changes: dict[str, Any]) -> None:
    """Each number is allowed by itself; together they took 8 GB and 43 s, or more."""
    message = sent(**changes, card=None)
    refused(message, "image-size is 4096", "Lower image-size", size=2**30)  # that of the resized images


def test_every_number_of_every_plan_has_a_limit() -> None:
    for side in client_sides().values():
        for spec in side.plan.__dataclass_fields__.values():
            assert spec.name in LIMITS or str(spec.type) not in ("int", "float"), (side.name, spec.name)


def test_plans_as_they_are_sent_are_within_the_limits() -> None:
    for task in (TASK, SMALL):
        assert read_task(task.to_json()) == task
    with pytest.raises(TaskError, match=r"momentum is 1\.0; allowed: at least 0, below 1"):
        read_task(SMALL.but(momentum=1.0).to_json())


def test_a_deployed_node_holds_no_more_images_than_a_part_of_its_memory(tmp_path: Path) -> None:
    """Whatever ``image-memory`` the server sends; what is more is read batch by batch."""
    node = {"partition-id": 0, "num-partitions": 1, "randomness": "secret", "secret-dir": str(tmp_path)}
    for sent_memory, expected in ((0.5, 0.5), (1e6, memory_of_machine() / 2**32)):
        task = SMALL.but(image_memory=sent_memory)
        message = Message(RecordDict(content(task=task.to_json())), dst_node_id=5, message_type="train")
        context = Context(1, 5, dict(node), RecordDict(dict(MINE)), {})
        assert client_of(message, context).task.plan.image_memory == pytest.approx(expected)


@pytest.mark.parametrize("timeout", [5e-324, 1e-300, 1e-9, 1e-7])
def test_a_servers_tiny_time_does_not_take_the_nodes_own_away(timeout: float) -> None:
    """Timers count microseconds: what is less was no limit at all, and the node's own 0.3 s did not hold either."""
    busy, start = SMALL.but(local_epochs=10**6), time.process_time()
    with pytest.raises(Exception, match=r"client ran longer than client-timeout = 0\.001 s"):
        ask("train", RecordDict(content(task=busy.to_json(), timeout=timeout)), {"max-seconds": 0.3})
    assert time.process_time() - start < 20


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

    message = Message(RecordDict({"config": ConfigRecord({"timeout": 0.01})}), dst_node_id=5, message_type="train")
    with pytest.raises(TimeoutError, match="client ran longer than client-timeout"):
        watchdog(message, Context(1, 5, {}, RecordDict(), {}), stubborn)
    assert caught
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
