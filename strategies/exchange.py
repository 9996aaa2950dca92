"""Sending messages to partitions and getting one reply each, whatever happens to the workers in between."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid

from clients.records import REFUSED
from clients.task import Task

RESTART_SECONDS = 6.0
"""A worker process that died is started again by Ray within about 3 s (measured); messages sent meanwhile fail at once."""


SHORTEST_POLL, LONGEST_POLL = 0.005, 1.0
"""Seconds between two looks for replies."""


@dataclass(frozen=True)
class Posted:
    """Messages on their way.

    Attributes:
        message_type: Of all of them.
        contents: Partition -> content.
        ids: Of the messages, in the same order.
        deadline: Time on the monotonic clock after which nobody waits any more.
    """

    message_type: str
    contents: dict[int, RecordDict]
    ids: list[str]
    deadline: float


@dataclass(frozen=True)
class Exchange:
    """Round trips with the nodes of one run.

    Attributes:
        grid: Flower's message carrier.
        nodes: Partition -> node id. Node ids are random; partitions are what results are ordered by.
        timeout: Seconds that a client may take; it is told too, and then answers with an error.
    """

    grid: Grid
    nodes: Mapping[int, int]
    timeout: float

    def __call__(self, message_type: str, contents: Mapping[int, RecordDict]) -> dict[int, Message]:
        """Sends one message to each partition in ``contents``; returns the replies (errors too) in order of partition.

        A message that was lost with its worker process is sent again once, alone: it may have met a worker that another
        client's crash had taken down. A client that kills its worker twice has failed.
        """
        return self.wait(self.post(message_type, contents))

    def post(self, message_type: str, contents: Mapping[int, RecordDict]) -> Posted:
        """Sends one message to each partition and does not wait for the replies: ``wait`` does."""
        messages = [
            Message(content=content, dst_node_id=self.nodes[partition], message_type=message_type)
            for partition, content in contents.items()
        ]
        # The client's own watchdog answers first; the margin covers queueing behind other clients on the same worker.
        deadline = time.monotonic() + self.timeout * len(messages) + 30.0
        return Posted(message_type, dict(contents), list(self.grid.push_messages(messages)), deadline)

    def wait(self, posted: Posted) -> dict[int, Message]:
        """The replies to ``post``, as ``__call__`` returns them."""
        replies = self._pull(posted)
        lost = [partition for partition, reply in replies.items() if is_lost(reply)]
        for partition in lost:
            time.sleep(RESTART_SECONDS)
            replies |= self._pull(self.post(posted.message_type, {partition: posted.contents[partition]}))
        return dict(sorted(replies.items()))

    def _pull(self, posted: Posted) -> dict[int, Message]:
        partitions = {node: partition for partition, node in self.nodes.items()}
        start, open_ids, replies = time.monotonic(), set(posted.ids), {}
        while open_ids:
            for reply in self.grid.pull_messages(open_ids):
                open_ids.discard(reply.metadata.reply_to_message_id)
                replies[partitions[reply.metadata.src_node_id]] = reply
            now = time.monotonic()
            if not open_ids or now >= posted.deadline:
                break
            # Short messages are asked for often, long ones seldom: a tenth of the wait at most is lost.
            time.sleep(min(max(0.1 * (now - start), SHORTEST_POLL), LONGEST_POLL))
        return replies

    def config(self, task: Task, **values: str | int | float | bool) -> ConfigRecord:
        """The ``config`` record that every message carries."""
        return ConfigRecord({"task": task.to_json(), "timeout": self.timeout, **values})


def is_lost(reply: Message) -> bool:
    """Whether the reply says that no app answered (the worker died), rather than that the app raised an error or refused."""
    return reply.has_error() and reply.error.code not in (ErrorCode.CLIENT_APP_RAISED_EXCEPTION, REFUSED)


def is_refusal(reply: Message) -> bool:
    """Whether the node said that its configuration does not let it answer."""
    return reply.has_error() and reply.error.code == REFUSED
