"""A Flower Grid whose nodes keep to a plan, and a clock of its own, so that nobody waits."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from flwr.app import ConfigRecord, Error, Message, RecordDict

from clients.flower_private import act_as_task, set_message_id


@dataclass
class Clock:
    """Time passes only while someone sleeps."""

    now: float = 1000.0
    slept: list[float] = field(default_factory=list)

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


@dataclass
class Node:
    """What a node answers: the seconds until then and an error code (0: fine), message after message."""

    plan: deque[tuple[float, int]]


class StubGrid:
    """Nodes that keep to a plan."""

    def __init__(self, clock: Clock, plans: dict[int, list[tuple[float, int]]]) -> None:
        act_as_task()
        self.clock = clock
        self.nodes = {node: Node(deque(plan)) for node, plan in plans.items()}
        self.pushed: list[Message] = []
        self._replies: dict[str, tuple[float, Message]] = {}

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        ids = []
        for message in messages:
            identity = f"message-{len(self.pushed)}"
            set_message_id(message, identity)
            self.pushed.append(message)
            ids.append(identity)
            plan = self.nodes[message.metadata.dst_node_id].plan
            if plan:
                seconds, code = plan.popleft()
                body: Any = Error(code=code, reason="stub") if code else RecordDict(dict(message.content))
                self._replies[identity] = self.clock.now + seconds, Message(body, reply_to=message)
        return ids

    def pull_messages(self, ids: Iterable[str]) -> list[Message]:
        due = [one for one in ids if one in self._replies and self._replies[one][0] <= self.clock.now]
        return [self._replies.pop(identity)[1] for identity in due]


def contents(*partitions: int) -> dict[int, RecordDict]:
    return {p: RecordDict({"config": ConfigRecord({"for": p})}) for p in partitions}
