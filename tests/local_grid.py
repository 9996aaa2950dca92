"""A Flower Grid that answers messages in this process, with the real ClientApp: no Ray, no network, milliseconds a round."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable
from typing import Any

from flwr.app import Context, Message, RecordDict
from flwr.app.error import Error
from flwr.common.constant import ErrorCode
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

from clients.app import app as client_app

Tamper = Callable[[int, Message, Message], Message | None]
"""(partition, request, reply) -> the reply as the server gets it; None loses it; raising is the client's error."""


class LocalGrid(Grid):
    """Nodes 100, 101, ... hold partitions 0, 1, ...; every message takes the wire format there and back.

    Args:
        clients: Number of nodes.
        tamper: May change, lose or break replies.
        node_config: Extra node configuration by partition.
        randomness: Where the nodes' random draws start: "seed" as in a simulation, or "secret" as in a deployment. A node that
            is not told takes itself for a deployed one.
    """

    def __init__(
        self,
        clients: int,
        tamper: Tamper | None = None,
        node_config: dict[int, dict[str, Any]] | None = None,
        randomness: str = "seed",
    ) -> None:
        TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1
        self.tamper = tamper
        self.sent: list[tuple[str, int]] = []
        extra = node_config or {}
        common = {"num-partitions": clients, "randomness": randomness}
        self.contexts = {
            100 + at: Context(1, 100 + at, {"partition-id": at, **common, **extra.get(at, {})}, RecordDict(), {})
            for at in range(clients)
        }
        self._replies: dict[str, Message] = {}
        self._run: Any = None

    @property
    def run(self) -> Any:
        return self._run

    def set_run(self, run: Any) -> None:
        self._run = run

    def create_message(self, *args: Any, **kwargs: Any) -> Message:
        raise NotImplementedError

    def get_node_ids(self) -> list[int]:
        return list(self.contexts)

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        ids = []
        for message in messages:
            message.metadata.__dict__["_message_id"] = identity = uuid.uuid4().hex
            reply = self._answer(message_from_proto(message_to_proto(message)))
            if reply is not None:  # for a lost one nobody need wait until the time is up
                self._replies[identity] = message_from_proto(message_to_proto(reply))
                ids.append(identity)
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        return [self._replies.pop(identity) for identity in message_ids if identity in self._replies]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        return self.pull_messages(self.push_messages(messages))

    def _answer(self, message: Message) -> Message | None:
        node = message.metadata.dst_node_id
        self.sent.append((message.metadata.message_type, node - 100))
        try:
            reply = client_app(message, self.contexts[node])
            return self.tamper(node - 100, message, reply) if self.tamper else reply
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            return Message(Error(code=ErrorCode.CLIENT_APP_RAISED_EXCEPTION, reason=reason), reply_to=message)
