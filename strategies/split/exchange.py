"""Round trips of split learning: every reply is checked before it is used, and what it cost is counted."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from flwr.app import ArrayRecord, Message

from clients.task.task import Task
from clients.wire.records import values_of
from strategies.exchange.exchange import Exchange, Posted
from strategies.exchange.guard import Answers, FaultIn, GuardedExchange, Rows


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


class SplitExchange(GuardedExchange):
    """The guarded exchange of one pipeline, with the costs of a round (see ``GuardedExchange`` for the arguments)."""

    def __init__(self, exchange: Exchange, rows: Rows, min_usable: float) -> None:
        super().__init__(exchange, rows, min_usable)
        self.tally = Tally()

    def receive(
        self, task: Task, posted: Posted, fault_in: FaultIn | None = None, *, at_least: float | None = None
    ) -> Answers:
        """The usable replies, counted."""
        good = super().receive(task, posted, fault_in, at_least=at_least)
        self.tally.failed |= set(posted.contents) - set(good)
        for partition, reply in good.items():
            self._count(partition, reply)
        return good

    def _count(self, partition: int, reply: Message) -> None:
        seconds = values_of(reply, "metrics").get("train-seconds")
        # A client may report anything, and nothing but a row depends on it.
        self.tally.seconds[partition] += seconds if isinstance(seconds, int | float) else 0.0
        records = [record for record in reply.content.values() if isinstance(record, ArrayRecord)]
        self.tally.sent[partition] += sum(len(array.data) for record in records for array in record.values())


def like(*shape: int, dtype: type[np.generic] = np.float32) -> np.ndarray:
    """An array of this shape and dtype to compare others with; takes no memory."""
    return np.broadcast_to(dtype(0), shape)


def numbered(shapes: Sequence[tuple[int, ...]], dtype: type[np.generic] = np.float32) -> dict[str, np.ndarray]:
    """Numbers from 0, as text, to ``like`` each shape."""
    return {str(at): like(*shape, dtype=dtype) for at, shape in enumerate(shapes)}
