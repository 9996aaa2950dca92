"""Whether the installed Flower has all that fedveil takes from it; offline, without torch and pytest.

    uv run --no-project --python 3.11 --with "flwr[simulation]" python -m tests.clients.flower_names

From the root of a checkout this tries the newest release of Flower. It prints the version and one line for each name, and ends with
1 when a name is missing or is called in another way.
"""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from clients import flower_private

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("defenses", "attacks", "clients", "strategies", "simulations")
PUBLIC = (
    "flwr.app",
    "flwr.clientapp",
    "flwr.clientapp.mod",
    "flwr.common",
    "flwr.serverapp",
    "flwr.serverapp.strategy",
    "flwr.simulation",
)
"""Modules whose ``__all__`` is Flower's public interface."""
PATIENCE = ("LOCAL_SUPERLINK_STARTUP_TIMEOUT", "CONTROL_API_PROBE_TIMEOUT")
"""Constants that ``simulations/runtime/flower_command.py`` sets; a test compares them, as this file imports no torch."""


def imports(path: Path) -> Iterator[tuple[int, str, str]]:
    """Line, module and name of each import from Flower in a file; the name is "" for ``import MODULE``."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found = [(alias.name, "") for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found = [(node.module, alias.name) for alias in node.names]
        else:
            continue
        yield from ((node.lineno, module, name) for module, name in found if module.split(".")[0] == "flwr")


def is_public(module: str, name: str) -> bool:
    """Whether Flower lists a name, or the module itself where the name is ""."""
    return module in PUBLIC and (not name or name in import_module(module).__all__)


def public_names() -> set[tuple[str, str]]:
    """(module, name) of what the five packages import from Flower's public modules."""
    files = [path for package in PACKAGES for path in (ROOT / package).rglob("*.py")]
    return {(module, name) for path in files for _, module, name in imports(path) if module in PUBLIC and name}


def takes(function: Callable[..., Any], *args: str, **kwargs: str) -> None:
    """Raise ``TypeError`` unless a function can be called with such arguments."""
    inspect.signature(function).bind(*args, **kwargs)


def message() -> Any:
    """Return a message with a value in it."""
    from flwr.app import ConfigRecord, Message, RecordDict

    flower_private.act_as_task()
    return Message(RecordDict({"config": ConfigRecord({"rounds": 3})}), 1, "train.probe")


def wrapped() -> Any:
    """Return an app with a mod of its own, whose function of training has another; with both mods and the bare function."""
    from flwr.clientapp import ClientApp

    def outer(asked: Any, context: Any, call_next: Any) -> Any:
        return call_next(asked, context)

    def inner(asked: Any, context: Any, call_next: Any) -> Any:
        return call_next(asked, context)

    def train(asked: Any, context: Any) -> Any:
        return asked

    app = ClientApp(mods=[outer])
    app.train("probe", mods=[inner])(train)
    return app, outer, inner, train


def check_simulation_worker() -> None:
    """The module is the one of Flower's actor."""
    import_module(flower_private.SIMULATION_WORKER)


def check_wrapped() -> None:
    """A function of training is closed over with its own mod, and the result with the app's mod, each by the two names."""
    app, outer, inner, train = wrapped()
    function = flower_private.functions_of(app)["train.probe"]
    for expected in (outer, inner):
        held = inspect.getclosurevars(function).nonlocals
        assert function.__code__.co_freevars == flower_private.WRAPPED, f"closes over {sorted(held)}"
        function, mod = (held[name] for name in flower_private.WRAPPED)
        assert mod is expected, f"the mod is {mod!r}"
    assert function is train, f"the innermost function is {function!r}"


def check_act_as_task() -> None:
    """A message can be made."""
    assert message().content["config"]["rounds"] == 3


def check_set_message_id() -> None:
    """The message and a reply to it show the id."""
    from flwr.app import Message

    asked = message()
    flower_private.set_message_id(asked, "asked")
    assert asked.metadata.message_id == "asked"
    assert Message(asked.content, reply_to=asked).metadata.reply_to_message_id == "asked"


def check_to_wire() -> None:
    """A message becomes bytes, whose content stands in a part of its own."""
    from flwr.common.serde import message_to_proto

    takes(message_to_proto, "message")
    assert b"rounds" in flower_private.to_wire(message()).content.SerializeToString()


def check_from_wire() -> None:
    """A message comes back as it went."""
    from flwr.common.serde import message_from_proto

    takes(message_from_proto, "proto")
    read = flower_private.from_wire(flower_private.to_wire(message()))
    assert (read.metadata.message_type, read.content["config"]["rounds"]) == ("train.probe", 3)


def check_error_code() -> None:
    """Both codes in use are small numbers, which ours are not."""
    codes = [flower_private.error_code(name) for name in ("CLIENT_APP_RAISED_EXCEPTION", "MESSAGE_UNAVAILABLE")]
    assert all(0 < code < 1000 for code in codes), codes


def check_functions_of() -> None:
    """Functions stand under their message type, and a function that is put there is the one that answers."""
    from flwr.app import Context, RecordDict

    app, *_ = wrapped()
    functions, asked = flower_private.functions_of(app), message()
    assert list(functions) == ["train.probe"], list(functions)
    functions["train.probe"] = lambda asked, context: "ours"  # type: ignore[assignment, return-value]
    assert app(asked, Context(1, 1, {}, RecordDict(), {})) == "ours"


def check_mods_around() -> None:
    """The app's mods alone."""
    app, outer, *_ = wrapped()
    assert list(flower_private.mods_around(app)) == [outer]


def check_has_client_fn() -> None:
    """Of two apps, the one that was made with ``client_fn``."""
    from flwr.clientapp import ClientApp

    assert not flower_private.has_client_fn(ClientApp())
    assert flower_private.has_client_fn(ClientApp(client_fn=lambda context: None))  # type: ignore[arg-type, return-value]


def check_replace_worker_class() -> None:
    from flwr.server.superlink.fleet.vce.backend import raybackend

    before = raybackend.ClientAppActor
    try:
        assert flower_private.replace_worker_class(lambda found: [found]), "no actor class of that name"
        assert raybackend.ClientAppActor == [before]
    finally:
        raybackend.ClientAppActor = before
    takes(before.options, num_cpus="", num_gpus="")


def check_worker_options() -> None:
    """The actor has options of Ray, and Ray takes the two that ``clients/__init__.py`` sets."""
    from flwr.simulation.ray_transport.ray_actor import ClientAppActor

    assert flower_private.worker_options() is not None, "the actor has no options"
    ClientAppActor.options(max_restarts=-1, max_task_retries=1)


def check_local_superlink() -> None:
    """Both constants are seconds, and the functions that start and find a SuperLink read them."""
    module = flower_private.local_superlink()
    assert module is not None, "flwr.cli.local_superlink is gone"
    source = inspect.getsource(module)
    for name in PATIENCE:
        assert isinstance(getattr(module, name), float), name
        assert source.count(name) > 1, f"{name} is imported only"


def check_flower_command() -> None:
    """Flower's command can be called without arguments."""
    takes(flower_private.flower_command())


def masked_round() -> tuple[list[Any], list[Any]]:
    """Run SecAgg+ with two nodes that send 1 and 2; return the mean, and what ``masked_parameters`` finds in each reply."""
    import numpy as np
    from flwr.app import Context, RecordDict

    flower_private.act_as_task()
    app = flower_private.secagg_plus_app(lambda client: ([np.full(3, client + 1.0, np.float32)], 1))
    contexts = {100 + at: Context(1, 100 + at, {"partition-id": at}, RecordDict(), {}) for at in range(2)}
    replies: list[Any] = []

    def send_and_receive(messages: Any, *, timeout: float | None = None) -> list[Any]:
        answers = []
        for number, request in enumerate(messages):
            flower_private.set_message_id(request, f"{len(replies)}-{number}")
            copied = flower_private.from_wire(
                flower_private.to_wire(request)
            )  # one content serves all, and mods change it
            answers.append(app(copied, contexts[request.metadata.dst_node_id]))
        replies.extend(answers)
        return answers

    grid = SimpleNamespace(get_node_ids=lambda: list(contexts), send_and_receive=send_and_receive)
    settings = {"num_shares": 1.0, "reconstruction_threshold": 0.5, "max_weight": 1.0}
    mean = flower_private.secagg_plus_round(grid, [np.zeros(3, np.float32)], **settings)
    return mean, [flower_private.masked_parameters(reply) for reply in replies]


def check_secagg_plus_app() -> None:
    """Two nodes answer the four stages."""
    assert len(masked_round()[1]) == 8


def check_secagg_plus_round() -> None:
    """The mean of 1 and 2."""
    (found,), _ = masked_round()
    assert abs(found - 1.5).max() < 1e-5, found


def check_masked_parameters() -> None:
    """A weight and one array of integers of each node, in one stage of four."""
    found = [one for one in masked_round()[1] if one is not None]
    assert [[part.shape for part in one] for one in found] == [[(1,), (3,)]] * 2


def check_public_names() -> None:
    """Flower's public modules have every name that fedveil imports from them."""
    missing = sorted(f"{module}.{name}" for module, name in public_names() if not is_public(module, name))
    assert not missing, ", ".join(missing)


CHECKS: dict[str, Callable[[], None]] = {
    name.removeprefix("check_"): value for name, value in list(globals().items()) if name.startswith("check_")
}
"""Name in ``clients/flower_private.py``, of which constants are in small letters here -> what raises unless it is as we use it."""


def main() -> int:
    """Prints what holds; the exit code."""
    print(f"Flower {version('flwr')}")
    failed = 0
    for name, check in CHECKS.items():
        try:
            check()
            print(f"  ok      {name}")
        except Exception as error:
            failed += 1
            print(f"  FAILED  {name}: {type(error).__name__}: {error}")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
