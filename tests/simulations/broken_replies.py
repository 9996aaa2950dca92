"""Replies of clients that go wrong in one way each, as tamper functions of a ``LocalGrid``."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, Message, MetricRecord

from tests.local_grid import Tamper

Break = Callable[[Message], Message | None]
"""Spoils a reply; None loses it."""


def is_asked(request: Message, message_type: str, **config: Any) -> bool:
    """Whether a message is of a type, with such a ``config``."""
    asked: Any = request.content.get("config", {})
    return request.metadata.message_type == message_type and all(asked[key] == config[key] for key in config)


def on(message_type: str, spoil: Break, *, partitions: Sequence[int] = (1,), **config: Any) -> Tamper:
    """A tamper function: some clients' replies to messages of a type, with such a ``config``."""

    def tamper(partition: int, request: Message, reply: Message) -> Message | None:
        return spoil(reply) if partition in partitions and is_asked(request, message_type, **config) else reply

    return tamper


def raising(*_: Any) -> Message:
    raise RuntimeError("disk full")


def edit(record: str, change: Callable[[dict[str, np.ndarray]], Any]) -> Break:
    """Changes the arrays of a record."""

    def spoil(reply: Message) -> Message:
        arrays = {name: array.numpy().copy() for name, array in reply.content[record].items()}
        change(arrays)
        reply.content[record] = ArrayRecord({name: Array(values) for name, values in arrays.items()})
        return reply

    return spoil


def setting(record: str, make: Callable[[np.ndarray], np.ndarray]) -> Break:
    """Replaces the first batch of a record."""
    return edit(record, lambda arrays: arrays.update({"0": make(arrays["0"])}))


def at(place: int, value: float) -> Callable[[np.ndarray], np.ndarray]:
    """Sets one entry."""
    return lambda v: np.where(np.arange(v.size).reshape(v.shape) == place, value, v).astype(v.dtype)


def without(record: str) -> Break:
    return lambda reply: (reply.content.pop(record), reply)[1]


def metric(name: str, value: Any) -> Break:
    def spoil(reply: Message) -> Message:
        numbers: Any = reply.content["metrics"]
        reply.content["metrics"] = MetricRecord({**numbers, name: value})
        return reply

    return spoil
