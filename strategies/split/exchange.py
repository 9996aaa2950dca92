"""Round trips of split learning: every reply is checked before it is used, and what it cost is counted."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from flwr.app import ArrayRecord, Message

from clients.task.task import Task
from strategies.exchange.exchange import Exchange, Posted
from strategies.exchange.guard import Answers, FaultIn, GuardedExchange, Rows, seconds_of


@dataclass
class Tally:
    """What a round cost each client: partition -> seconds of work, and bytes of tensors that it sent.

    Attributes:
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
        self.tally.seconds[partition] += seconds_of(reply, "train-seconds")
        records = [record for record in reply.content.values() if isinstance(record, ArrayRecord)]
        self.tally.sent[partition] += sum(len(array.data) for record in records for array in record.values())
