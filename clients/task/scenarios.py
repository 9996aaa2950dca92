"""The clients' side of each scenario: a folder here whose ``messages`` module holds a ``SIDE``."""

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from flwr.app import Context, Message
from pydantic import ConfigDict

from clients.task.local_data import Client
from clients.task.task import Plan, Task, TaskError
from clients.wire.schema import STRICT, parsed
from clients.wire.texts import shortened
from defenses.checks import MOST_RATE, MOST_ROUNDS, Limit
from defenses.registry import collected, modules_in

Handler = Callable[[Message, Context], Message]
COMMON = {"query.setup", "query.partition", "query.audit"}
"""Messages of all scenarios."""


@dataclass(frozen=True)
class ClientSide:
    """A scenario's part of the ClientApp.

    Attributes:
        name: Value of the setting ``scenario``.
        client: Class that works on the scenario's tasks.
        plan: Class of the scenario's plans, a run's fixed settings for the clients.
        handlers: Message type, such as "train" or "train.step", -> its handler. Scenarios may have handlers of the same type; the
            task names its scenario.

    Raises:
        ValueError: When it would answer a message of all scenarios.
    """

    name: str
    client: type[Client]
    plan: type[Plan]
    handlers: Mapping[str, Handler]

    def __post_init__(self) -> None:
        if taken := COMMON & set(self.handlers):
            raise ValueError(f"{min(taken)} is a message of all scenarios")


@functools.cache
def client_sides() -> dict[str, ClientSide]:
    """Scenario -> its clients' side; of this package and of others, by entry points of the group "fedveil.clients".

    Raises:
        RegistryError: Naming an entry point that cannot be loaded, or takes a name or a message that is taken.
    """
    return collected(ClientSide, "scenario", "fedveil.clients", modules_in("clients", "messages"), "SIDE")


def client_side(scenario: str) -> ClientSide:
    """The clients' side of one scenario; ``RuntimeError`` when this node knows no such scenario."""
    known = client_sides()
    if scenario not in known:
        raise RuntimeError(f"scenario {scenario!r} is not known to this node; known: {', '.join(known)}")
    return known[scenario]


@dataclass(frozen=True)
class _Orders:
    """A task whose plan is not read yet: which fields it has depends on the scenario that it names."""

    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    plan: dict[str, Any]
    round: Annotated[int, Limit(0, 2 * MOST_ROUNDS)]  # phases follow the last round
    learning_rate: Annotated[float, Limit(0, MOST_RATE)]


def read_task(text: object) -> Task:
    """Reads what ``Task.to_json`` wrote.

    A process reads the same text but once: in a round all clients of a simulation have the same orders, and read them twice.

    Raises:
        RuntimeError: When this node does not know its scenario.
        TaskError: When it is no task.
    """
    return _read(text if isinstance(text, str) else "null")


@functools.lru_cache(maxsize=2)
def _read(text: str) -> Task:
    orders = parsed(_Orders, text, TaskError)
    name = orders.plan.get("scenario")
    if not isinstance(name, str):
        raise TaskError(f"scenario is {shortened(name)}; expected the name of a scenario")
    return Task(client_side(name).plan.of(orders.plan), orders.round, orders.learning_rate)
