"""Round trips of split learning: every reply is checked before it is used, and what it cost is counted."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict

from clients.records import values_of
from clients.task import Task
from strategies.exchange import Exchange, Posted
from strategies.guard import Rows, usable_replies

FaultIn = Callable[[int, Message], str]
"""(partition, reply) -> why the reply cannot be used, or ""."""


@dataclass
class Tally:
    """What a round cost each client, and who missed a part of it.

    Attributes:
        seconds: Partition -> seconds of work.
        sent: Partition -> bytes of tensors that it sent.
        failed: Partitions of which at least one reply could not be used.
    """

    seconds: dict[int, float] = field(default_factory=lambda: defaultdict(float))
    sent: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    failed: set[int] = field(default_factory=set)


class SplitExchange:
    """The exchange of one pipeline, behind the guard.

    Args:
        exchange: Round trips with the nodes.
        rows: Where refused replies are recorded.
        min_usable: Share of the asked clients that must answer usably, each time.
    """

    def __init__(self, exchange: Exchange, rows: Rows, min_usable: float) -> None:
        self.exchange = exchange
        self.rows = rows
        self.min_usable = min_usable
        self.tally = Tally()

    def config(self, task: Task, **values: str | int | float | bool) -> ConfigRecord:
        """The ``config`` record that every message carries."""
        return self.exchange.config(task, **values)

    def ask(
        self, task: Task, message_type: str, contents: Mapping[int, RecordDict], fault_in: FaultIn
    ) -> dict[int, Message]:
        """Sends one message to each partition in ``contents`` and returns the usable replies.

        Raises:
            TooFewReplies: When they are too few.
        """
        return self.receive(task, self.post(message_type, contents), fault_in)

    def post(self, message_type: str, contents: Mapping[int, RecordDict]) -> Posted:
        """Sends without waiting: ``receive`` does."""
        return self.exchange.post(message_type, contents)

    def receive(
        self, task: Task, posted: Posted, fault_in: FaultIn, *, at_least: float | None = None
    ) -> dict[int, Message]:
        """The usable replies to ``post``; raises as ``ask``, with another share than ``min_usable`` if one is given."""
        asked = list(posted.contents)
        good = usable_replies(
            task, posted.message_type, asked, self.exchange.wait(posted), fault_in,
            rows=self.rows, min_usable=self.min_usable if at_least is None else at_least, timeout=self.exchange.timeout,
        )  # fmt: skip
        self.tally.failed |= set(asked) - set(good)
        for partition, reply in good.items():
            seconds = values_of(reply, "metrics").get("train-seconds")
            # A client may report anything, and nothing but a row depends on it.
            self.tally.seconds[partition] += seconds if isinstance(seconds, int | float) else 0.0
            arrays = [
                array
                for record in reply.content.values()
                if isinstance(record, ArrayRecord)
                for array in record.values()
            ]
            self.tally.sent[partition] += sum(len(array.data) for array in arrays)
        return good


def like(*shape: int, dtype: type[np.generic] = np.float32) -> np.ndarray:
    """An array of this shape and dtype to compare others with; takes no memory."""
    return np.broadcast_to(dtype(0), shape)


def numbered(shapes: Sequence[tuple[int, ...]], dtype: type[np.generic] = np.float32) -> dict[str, np.ndarray]:
    """Numbers from 0, as text, to ``like`` each shape."""
    return {str(at): like(*shape, dtype=dtype) for at, shape in enumerate(shapes)}
