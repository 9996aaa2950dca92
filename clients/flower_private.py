"""The private parts of Flower that fedveil uses, each with its use and what to do when it moves. No other file imports any.

Public are the names that Flower lists in ``__all__`` of ``flwr.app``, ``flwr.clientapp``, ``flwr.clientapp.mod``,
``flwr.serverapp``, ``flwr.serverapp.strategy``, ``flwr.common`` and ``flwr.simulation``.

Every function imports what it needs, so that a name that moved breaks its own users only. Flower's command and its simulation
take seconds to import. ``python -m tests.clients.flower_names`` tries everything here with the installed Flower.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from threading import Event
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flwr.app import Message
    from flwr.clientapp import ClientApp

# Use: a worker of a simulation is recognised by this loaded module (``draws_from_seed``).
# If it moves: name the new module here; until then workers draw from secrets, and runs of one seed differ.
SIMULATION_WORKER = "flwr.simulation.ray_transport.ray_actor"

# Use: names that a function of Flower's closes over when it puts a mod (the second) around a function (the first).
# If they change: name the new ones here, or make ``mods=`` of ``answer_audits`` required; until then mods are found as none.
WRAPPED = ("_ffn", "_mod")


def act_as_task() -> None:
    """Give this process the identity of a Flower task, without which ``Message(...)`` raises ``RuntimeError``.

    Use: grids that exchange messages inside one process. If it moves: set it where it went, or drop this call if ``Message`` needs
    no identity; until then ``fedveil run --in-process``, ``fedveil check-app`` and most tests stop working.
    """
    from flwr.supercore.task_identity import TaskIdentity

    TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1


def set_message_id(message: Message, identity: str) -> None:
    """Set the id that Flower's own grid gives to a message when it is sent.

    Use: replies inside one process name the message that they answer. If it moves: a grid in one process may keep a table of its
    own from message to reply.
    """
    message.metadata.__dict__["_message_id"] = identity


def to_wire(message: Message) -> Any:
    """Return the protocol buffer as which Flower sends a message.

    Use: runs inside one process pass every message through Flower's wire format, so that a record that cannot be sent fails there
    too. If it moves: pass messages on as they are; only that check is lost.
    """
    from flwr.common.serde import message_to_proto

    return message_to_proto(message)


def from_wire(proto: Any) -> Message:
    """Return the message of a protocol buffer. Use and replacement: as ``to_wire``."""
    from flwr.common.serde import message_from_proto

    return message_from_proto(proto)


def error_code(name: str) -> int:
    """Return the number of one of Flower's error codes, such as ``"CLIENT_APP_RAISED_EXCEPTION"``.

    Use: runs inside one process report an exception of a client as Flower does. If it moves: return 2, the number in Flower 1.41.

    Raises:
        AttributeError: When Flower has no such code.
    """
    from flwr.common.constant import ErrorCode

    return int(getattr(ErrorCode, name))


def functions_of(app: ClientApp) -> dict[str, Callable[..., Message]]:
    """Return the functions of an app by message type, such as ``train.probe``: Flower's own dictionary, which may be changed.

    Use: ``answer_audits`` finds the mods of ``@app.train`` and wraps functions after their registration. There is no public
    alternative. If it moves: take the dictionary from its new place; until then no running app can be audited.

    Raises:
        AttributeError: When the app has no such dictionary.
    """
    functions: dict[str, Callable[..., Message]] = getattr(app, "_registered_funcs")  # noqa: B009 (typed as private)
    return functions


def mods_around(app: ClientApp) -> Sequence[Any]:
    """Return the mods that an app was made with, the outermost first.

    Use: a report names the mods that act on probes. There is no public alternative. If it moves: take them from their new place;
    until then no running app can be audited.

    Raises:
        AttributeError: When the app keeps no mods.
    """
    mods: Sequence[Any] = getattr(app, "_mods")  # noqa: B009 (typed as private)
    return mods


def has_client_fn(app: ClientApp) -> bool:
    """Return whether an app was made with ``client_fn``, Flower's older interface.

    Use: ``fedveil check-app`` says that such an app cannot be audited. If it moves: read it from its new place, or drop this once
    Flower has no such interface; until then ``check-app`` calls such an app one that answers no training.
    """
    return getattr(app, "_call", None) is not None


def worker_options() -> dict[str, Any] | None:
    """Return the default options of the Ray actor that Flower's simulation starts, which may be changed; ``None`` without any.

    Use: Ray restarts a dead worker. Flower offers no setting for that, and the options are private to Ray as well. If either moves:
    a worker that died fails most of the later messages of its run (``tests/clients/process/test_lost_worker.py``).
    """
    try:
        from flwr.simulation.ray_transport.ray_actor import ClientAppActor
    except ImportError:
        return None
    options = getattr(ClientAppActor, "_default_options", None)
    return options if isinstance(options, dict) else None


def look_for_messages_sooner() -> None:
    """Have Flower's simulation look for new messages every few milliseconds, in place of every tenth of a second.

    Use: short rounds would mostly wait for that, and Flower offers no setting. If it moves: drop this; runs are slower, with the
    same rows.
    """
    try:
        from flwr.server.superlink.fleet.vce import vce_api
    except ImportError:
        return
    if look := getattr(vce_api, "add_messages_to_queue", None):
        sooner = lambda *parts: look(*(_Sooner(part) if isinstance(part, Event) else part for part in parts))  # noqa: E731
        setattr(vce_api, "add_messages_to_queue", sooner)  # noqa: B010 (typed as private)


class _Sooner:
    """An event with waits of 5 ms, or longer ones where the work between two would take more than a tenth of the time."""

    def __init__(self, stop: Event) -> None:
        self.is_set, self._wait, self._began = stop.is_set, stop.wait, time.monotonic()

    def wait(self, seconds: float) -> bool:
        """Wait for the event, at most so many seconds."""
        ended = self._wait(min(seconds, max(0.005, 9 * (time.monotonic() - self._began))))
        self._began = time.monotonic()
        return ended


def local_superlink() -> ModuleType | None:
    """Return the module that starts the SuperLink of ``flwr run``, whose constants are seconds to wait; ``None`` where it is gone.

    Use: ``fedveil run`` waits longer than Flower's 15 seconds for a SuperLink. If it moves: import it from its new
    place; until then Flower's own patience holds, and a start on a busy machine may fail.
    """
    try:
        from flwr.cli import local_superlink as found
    except ImportError:
        return None
    return found


def flower_command() -> Callable[[], Any]:
    """Return the function behind the command ``flwr``, which takes its arguments from ``sys.argv``.

    Use: ``fedveil run`` calls it with the changed constants of ``local_superlink``. If it moves: run the program ``flwr``, which is
    public, without those changes.
    """
    from flwr.cli.app import app

    return app
