"""Messages to partitions, and at most one reply from each."""

import math
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid

from clients.task.task import Task

MARGIN_SECONDS = 300.0
"""Beyond what clients may take: for worker processes that are started (again). Only what never answers waits so long."""

SHORTEST_POLL, LONGEST_POLL = 0.005, 1.0
"""Seconds between two polls for replies, if the grid cannot notify: with every message whose reply is not fetched yet, Flower's
simulation takes longer to find the next one, and its grid polls every tenth of a second."""


@dataclass(frozen=True)
class Posted:
    """Sent messages by partition; waiting for their replies ends at ``deadline`` on the monotonic clock."""

    message_type: str
    contents: dict[int, RecordDict]
    ids: list[str]
    deadline: float


@dataclass(frozen=True)
class Exchange:
    """Round trips with the nodes of one run.

    Attributes:
        nodes: Partition -> node id, as ids are random and results are ordered by partition.
        timeout: What a client may take, in seconds; the client knows it, and then answers with an error.
        dealt: Partition -> training and test examples that the client was dealt, or has by its reply to the set-up: it can
            report no more. Without an entry any count is taken.
    """

    grid: Grid
    nodes: Mapping[int, int]
    timeout: float
    dealt: Mapping[int, tuple[int, int]] = field(default_factory=dict, kw_only=True)

    def most(self, partition: int) -> tuple[float, float]:
        """Most training and most test examples that a client can report; infinite where that is unknown."""
        return self.dealt.get(partition, (math.inf, math.inf))

    def __call__(self, message_type: str, contents: Mapping[int, RecordDict]) -> dict[int, Message]:
        """Send one message to each partition in ``contents``, once; return the replies (errors too) in order of partition."""
        return self.wait(self.post(message_type, contents))

    def post(self, message_type: str, contents: Mapping[int, RecordDict]) -> Posted:
        """Send one message to each partition without waiting for replies, for which ``wait`` waits."""
        ids, deadline = self._push(self.messages(message_type, contents))
        return Posted(message_type, dict(contents), ids, deadline)

    def wait(self, posted: Posted) -> dict[int, Message]:
        """The replies to ``post``, as ``__call__`` returns them."""
        return self.by_partition(self._pull(posted.ids, posted.deadline))

    def send_and_receive(self, messages: Iterable[Message]) -> list[Message]:
        """The replies to messages of any nodes in order of arrival, as from Flower's grid but sooner."""
        return self._pull(*self._push(list(messages)))

    def messages(self, message_type: str, contents: Mapping[int, RecordDict]) -> list[Message]:
        """One message to the node of each partition in ``contents``."""
        return [
            Message(content=content, dst_node_id=self.nodes[partition], message_type=message_type)
            for partition, content in contents.items()
        ]

    def by_partition(self, replies: Iterable[Message]) -> dict[int, Message]:
        """Partition -> its node's reply, in order of partition."""
        partitions = {node: partition for partition, node in self.nodes.items()}
        return dict(sorted((partitions[reply.metadata.src_node_id], reply) for reply in replies))

    def _push(self, messages: list[Message]) -> tuple[list[str], float]:
        # The client's own watchdog answers first. Others may be in front of it on the same worker, and one whose worker ends is
        # run once more.
        deadline = time.monotonic() + self.timeout * (len(messages) + 1) + MARGIN_SECONDS
        return list(self.grid.push_messages(messages)), deadline

    def _pull(self, ids: list[str], deadline: float) -> list[Message]:
        start, open_ids, replies = time.monotonic(), set(ids), []
        longest = float(getattr(self.grid, "pull_interval", LONGEST_POLL))
        while open_ids:
            for reply in self.grid.pull_messages(open_ids):
                open_ids.discard(reply.metadata.reply_to_message_id)
                replies.append(reply)
            now = time.monotonic()
            if not open_ids or now >= deadline:
                break
            # Poll often for short messages and rarely for long ones: at most a tenth of the wait is lost.
            time.sleep(min(max(0.1 * (now - start), SHORTEST_POLL), longest))
        return replies

    def config(self, task: Task, **values: str | int | float | bool) -> ConfigRecord:
        """The ``config`` record that every message carries."""
        return ConfigRecord({"task": task.to_json(), "timeout": self.timeout, **values})
