"""Ways in which a client fails, by a draw that whoever knows the seed can repeat; also in a copy of the app on Flower's runtime."""

from __future__ import annotations

import ctypes
import os
import random
import signal
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord

FAILING = 0.2
"""Share of all answers to training and evaluation."""
SEED = "FEDVEIL_FAILING"
"""Variable of the seed."""


def raises() -> None:
    """As an app does whose client cannot go on."""
    raise OSError("the disk of this client is gone")


def hangs() -> None:
    """Until the client's own watchdog ends it."""
    while True:
        time.sleep(0.01)


def hangs_deaf() -> None:
    """In a call that Python cannot interrupt, where no alarm arrives."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM})
    ctypes.CDLL(None).sleep(10**6)


def is_killed() -> None:
    """As by the system when memory ends, with whatever else the process was to do."""
    os.kill(os.getpid(), signal.SIGKILL)


def spoilt(value: float, shape: tuple[int, ...] | None) -> Callable[[Any], None]:
    """Changes an answer: all numbers are ``value``, or the arrays have another shape and the metrics another name."""

    def spoil(reply: Any) -> None:
        if "arrays" in reply.content:
            arrays = {name: array.numpy() for name, array in reply.content["arrays"].items()}
            others = {name: np.full(shape or one.shape, value, one.dtype) for name, one in arrays.items()}
            reply.content["arrays"] = ArrayRecord({name: Array(one) for name, one in others.items()})
        else:
            wrong = {"test-accuracy-original": value} if shape is None else {"one-too-many": 1.0}
            reply.content["metrics"] = MetricRecord(dict(reply.content["metrics"]) | wrong)

    return spoil


INSTEAD: dict[str, Callable[[], None]] = {
    "raises an error": raises, "hangs": hangs, "hangs in a call that hears no alarm": hangs_deaf, "is killed (kill -9)": is_killed,
}  # fmt: skip
AFTERWARDS: dict[str, Callable[[Any], None]] = {
    "sends NaN": spoilt(float("nan"), None), "sends other shapes or names": spoilt(0.0, (3,)),
}  # fmt: skip
WAYS = (*INSTEAD, *AFTERWARDS)
WORDS = {
    "raises an error": "the disk of this client is gone", "hangs": "client ran longer than", "never answers": "no reply within",
    "sends NaN": "holds NaN|is nan", "sends other shapes or names": "expected float32|one-too-many",
    "hangs in a call that hears no alarm": "Actor(Unavailable|Died)Error", "is killed (kill -9)": "Actor(Unavailable|Died)Error",
}  # fmt: skip
"""What the row of each says."""


def way_of(seed: str, message_type: str, server_round: int, client: int) -> str:
    """How a client fails; "" where it does not."""
    draw = random.Random(f"{seed} {message_type} {server_round} {client}")
    return draw.choice(WAYS) if message_type in ("train", "evaluate") and draw.random() < FAILING else ""


def answered(handler: Callable[[Message, Context], Message], message: Message, context: Context) -> Message:
    """A client's answer, or how it fails; put around the handlers of the copy of the app."""
    from clients.task.scenarios import read_task

    task = read_task(message.content["config"]["task"])  # type: ignore[index]
    kind, client = message.metadata.message_type, int(context.node_config["partition-id"])
    way = way_of(os.environ[SEED], kind, task.round, client)
    if way in INSTEAD:
        INSTEAD[way]()
    reply = handler(message, context)
    if way in AFTERWARDS:
        AFTERWARDS[way](reply)
    return reply
