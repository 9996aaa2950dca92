"""A Flower Grid whose nodes keep to a plan, a clock of its own, so that nobody waits, replies off the wire, and rows in memory."""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from flwr.app import ConfigRecord, Error, Message, RecordDict

from clients.flower_private import act_as_task, set_message_id
from strategies.audit.jobs import AttackJob


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


class StubGrid:
    """Nodes that keep to a plan: the seconds until an answer and an error code (0: fine), message after message."""

    def __init__(self, clock: Clock, plans: dict[int, list[tuple[float, int]]]) -> None:
        act_as_task()
        self.clock = clock
        self.plans = {node: deque(plan) for node, plan in plans.items()}
        self.pushed: list[Message] = []
        self._replies: dict[str, tuple[float, Message]] = {}

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        ids = []
        for message in messages:
            identity = f"message-{len(self.pushed)}"
            set_message_id(message, identity)
            self.pushed.append(message)
            ids.append(identity)
            plan = self.plans[message.metadata.dst_node_id]
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


def reply_of(content: RecordDict | Error, node: int = 5) -> Message:
    """As it comes off the wire from a node."""
    act_as_task()
    asked = Message(RecordDict(), dst_node_id=node, message_type="train")
    set_message_id(asked, f"to-{node}")
    return Message(content, reply_to=asked)  # type: ignore[arg-type]


@dataclass
class Rows:
    """A recorder that keeps rows in memory, and jobs instead of running them."""

    found: list[dict[str, Any]] = field(default_factory=list)
    jobs: list[AttackJob] = field(default_factory=list)

    def row(self, task: Any, *, metric: str, value: float | None, **fields: Any) -> None:
        self.found.append({"round": task.round, "metric": metric, "value": value, **fields})

    def open_job(self, job: AttackJob) -> None:
        self.jobs.append(job)

    def of(self, metric: str) -> list[Any]:
        return [row["value"] for row in self.found if row["metric"] == metric]

    @property
    def failures(self) -> list[tuple[int, str, str]]:
        """(client, status, message) of all that went wrong."""
        return [(row["client"], row["status"], row["message"]) for row in self.found if row["metric"] == "client"]
