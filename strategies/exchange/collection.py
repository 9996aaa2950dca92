"""Batches that every client sends, a few in each message."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flwr.app import Message, RecordDict
from torch import Tensor

from clients.task.task import Task
from strategies.exchange.faults import fault, numbered
from strategies.exchange.guard import GuardedExchange, require_enough


@dataclass(eq=False)
class BatchCollection:
    """Request all batches of every client; a client that fails gets no further request, and its earlier replies are used.

    Attributes:
        work: Partition -> the examples of each batch that the client must send.
        whole: Partitions without a failure so far.
    """

    exchange: GuardedExchange
    task: Task
    message_type: str
    work: Mapping[int, Sequence[Tensor]]
    per_message: int

    def __post_init__(self) -> None:
        self.whole = set(self.work)

    def replies(
        self, shapes: Mapping[str, tuple[int, ...]], records: Mapping[str, Any], **config: str
    ) -> Iterator[tuple[int, Message]]:
        """Partition and reply of each usable answer, message after message.

        Args:
            shapes: Record of a reply -> shape of what it holds of one example, float32, under the numbers of the batches.
            records: What every message carries beside its ``config``.
            config: Further values of that.

        Raises:
            TooFewReplies: When too few clients send all that they have.
        """
        refused = set[int]()
        for first in range(0, max(map(len, self.work.values())), self.per_message):

            def fault_in(partition: int, reply: Message, first: int = first) -> str:
                sizes = [len(batch) for batch in self.work[partition][first : first + self.per_message]]
                expected = {name: numbered([(size, *shape) for size in sizes], first) for name, shape in shapes.items()}
                return next(filter(None, (fault(reply, like, name) for name, like in expected.items())), "")

            requested = [p for p, batches in self.work.items() if p in self.whole and first < len(batches)]
            orders = self.exchange.config(self.task, first=first, count=self.per_message, **config)
            contents = {partition: RecordDict({"config": orders, **records}) for partition in requested}
            at_least = None if first == 0 else 0.0
            answers = self.exchange.ask(self.task, self.message_type, contents, fault_in, at_least=at_least)
            self.whole -= set(requested) - set(answers)
            refused.update(answers.refused)
            # The share is of all clients: the last messages may be for a single one, whose rest is all that its failure costs.
            others = sorted(set(self.work) - refused)
            require_enough(self.task, self.message_type, others, sorted(self.whole), self.exchange.min_usable)
            yield from answers.items()
