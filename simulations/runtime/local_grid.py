"""A Flower Grid that answers messages in this process, with the real ClientApp: no daemon, no Ray, no network."""

import copy
import random
import uuid
from collections.abc import Iterable, Mapping
from typing import Any

from flwr.app import ArrayRecord, Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid

from clients.app import app as client_app
from clients.flower_private import act_as_task, error_code, from_wire, set_message_id, to_wire
from strategies.audit.pool import threads

FIRST_NODE = 100
"""Node ids are this and the following ones."""


class LocalGrid(Grid):
    """Nodes 100, 101, ... hold partitions 0, 1, ...; every message takes the wire format there and back.

    Clients are simulated: their random draws start from the experiment's seed, and they answer every question. Each answers at
    once, one after the other, while the server waits. What a client keeps between messages stays in its context, as in Flower.

    Args:
        clients: Number of nodes.
        cpus_per_client: Threads of torch while a client answers, as a worker of a simulation would have.
        app: The ClientApp of every node; fedveil's own by default.
        run_config: What its contexts say of the run.
    """

    def __init__(
        self,
        clients: int,
        cpus_per_client: int = 1,
        app: ClientApp = client_app,
        run_config: Mapping[str, str | int | float | bool] | None = None,
    ) -> None:
        act_as_task()
        self.cpus_per_client = cpus_per_client
        self.app = app
        run = random.SystemRandom().getrandbits(62)  # as every run of Flower, another one
        common: dict[str, Any] = {"num-partitions": clients, "randomness": "seed"}
        self.contexts = {
            FIRST_NODE + at: Context(
                run, FIRST_NODE + at, {"partition-id": at, **common}, RecordDict(), dict(run_config or {})
            )
            for at in range(clients)
        }
        self._replies: dict[str, Message] = {}
        self._run: Any = None

    @property
    def run(self) -> Any:
        """The run set by ``set_run``."""
        return self._run

    def set_run(self, run: Any) -> None:
        """Keeps the run of Flower's ServerApp."""
        self._run = run

    def create_message(
        self, content: RecordDict, message_type: str, dst_node_id: int, group_id: str = "", ttl: float | None = None
    ) -> Message:
        """As Flower's own grids."""
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def get_node_ids(self) -> list[int]:
        """All nodes."""
        return list(self.contexts)

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """Have every message answered; returns ids of the answered ones."""
        ids = []
        for message in messages:
            identity = uuid.uuid4().hex
            set_message_id(message, identity)
            with threads(self.cpus_per_client):
                reply = self.answer(_over_the_wire(message))
            if reply is not None:  # a lost one is not waited for
                self._replies[identity] = _over_the_wire(reply)
                ids.append(identity)
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """The available replies, each once."""
        return [self._replies.pop(identity) for identity in message_ids if identity in self._replies]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        """The replies, without waiting."""
        return self.pull_messages(self.push_messages(messages))

    def answer(self, message: Message) -> Message | None:
        """A node's reply, an error reply where its ClientApp raises; None where it is lost."""
        try:
            return self.app(message, self.contexts[message.metadata.dst_node_id])
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            return Message(Error(code=error_code("CLIENT_APP_RAISED_EXCEPTION"), reason=reason), reply_to=message)


def _over_the_wire(message: Message) -> Message:
    """What the receiver gets; arrays are bytes already, which nobody changes, and are not copied."""
    if message.has_error():
        return from_wire(to_wire(message))
    arrays, light = message.content.array_records, copy.copy(message)
    light.content = RecordDict({name: record for name, record in message.content.items() if name not in arrays})
    received = from_wire(to_wire(light))
    received.content.update({name: ArrayRecord({**record}) for name, record in arrays.items()})
    return received
