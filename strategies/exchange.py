"""Sending messages to partitions and getting one reply each, whatever happens to the workers in between."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid

from clients.task import Task

RESTART_SECONDS = 6.0
"""A worker process that died is started again by Ray within about 3 s (measured); messages sent meanwhile fail at once."""


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
        replies = self._send(message_type, contents)
        lost = [partition for partition, reply in replies.items() if is_lost(reply)]
        for partition in lost:
            time.sleep(RESTART_SECONDS)
            replies |= self._send(message_type, {partition: contents[partition]})
        return dict(sorted(replies.items()))

    def _send(self, message_type: str, contents: Mapping[int, RecordDict]) -> dict[int, Message]:
        messages = [
            Message(content=content, dst_node_id=self.nodes[partition], message_type=message_type)
            for partition, content in contents.items()
        ]
        partitions = {node: partition for partition, node in self.nodes.items()}
        # The client's own watchdog answers first; the margin covers queueing behind other clients on the same worker.
        replies = self.grid.send_and_receive(messages, timeout=self.timeout * len(messages) + 30.0)
        return {partitions[reply.metadata.src_node_id]: reply for reply in replies}

    def config(self, task: Task, **values: str | int | float | bool) -> ConfigRecord:
        """The ``config`` record that every message carries."""
        return ConfigRecord({"task": task.to_json(), "timeout": self.timeout, **values})


def is_lost(reply: Message) -> bool:
    """Whether the reply says that no app answered (the worker died), rather than that the app raised an error."""
    return reply.has_error() and reply.error.code != ErrorCode.CLIENT_APP_RAISED_EXCEPTION
