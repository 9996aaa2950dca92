"""The clients' side of each scenario: a folder here whose ``messages`` module holds a ``SIDE``."""

from __future__ import annotations

import functools
import importlib
import json
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from flwr.app import Context, Message

from clients.local_data import Client
from clients.task import Plan, Task
from defenses.registry import RegistryError, offered

Handler = Callable[[Message, Context], Message]
COMMON = {"query.setup", "query.partition", "query.audit"}
"""Messages of all scenarios."""


@dataclass(frozen=True)
class ClientSide:
    """What a scenario adds to the ClientApp.

    Attributes:
        name: Value of the setting ``scenario``.
        client: What works on a task of it.
        plan: What a run of it fixes for its clients.
        handlers: Message type, such as "train" or "train.step", -> what answers it. Other scenarios may have handlers of the same
            type; a task says whose it is.
    """

    name: str
    client: type[Client]
    plan: type[Plan]
    handlers: Mapping[str, Handler]


@functools.cache
def client_sides() -> dict[str, ClientSide]:
    """Scenario -> its clients' side; of this package and of others, by entry points of the group "fedveil.clients".

    Raises:
        RegistryError: Naming an entry point that cannot be loaded, or takes a name or a message that is taken.
    """
    here = __package__ or "clients"
    folders = sorted(info.name for info in pkgutil.iter_modules([str(Path(__file__).parent)]) if info.ispkg)
    own = [f"{here}.{folder}.messages" for folder in folders if find_spec(f"{here}.{folder}.messages")]
    sides: list[ClientSide] = [importlib.import_module(module).SIDE for module in own]
    found = {side.name: side for side in sides}
    for _, where, side in offered("fedveil.clients"):
        if not isinstance(side, ClientSide):
            raise RegistryError(f"{where} is no ClientSide but {type(side).__name__}")
        if side.name in found:  # what protects a client's images is not to be replaced unseen
            raise RegistryError(f"{where}: there is another scenario {side.name!r}; rename one of them")
        if taken := COMMON & set(side.handlers):
            raise RegistryError(f"{where}: {min(taken)} is a message of all scenarios")
        found[side.name] = side
    return found


def client_side(scenario: str) -> ClientSide:
    """The clients' side of one scenario.

    Raises:
        RuntimeError: When this node knows no such scenario.
    """
    known = client_sides()
    if scenario not in known:
        raise RuntimeError(f"scenario {scenario!r} is not known to this node; known: {', '.join(known)}")
    return known[scenario]


def read_task(text: str) -> Task:
    """Reads what ``Task.to_json`` wrote.

    Raises:
        RuntimeError: When this node does not know its scenario.
    """
    values = json.loads(text)
    plan = values.pop("plan")
    return Task(client_side(plan["scenario"]).plan.of(plan), **values)
