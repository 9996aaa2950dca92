"""Whether the installed Flower has all that fedveil takes from it; offline, without torch and pytest.

    uv run --no-project --python 3.11 --with "flwr[simulation]" python -m tests.clients.flower_names

From the root of a checkout this tries the newest release of Flower. It prints the version and one line for each name, and ends with
1 when a name is missing or is called in another way.
"""

import ast
import inspect
import sys
import textwrap
from collections.abc import Callable, Iterator
from functools import cache
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from runpy import run_path
from threading import Event
from types import SimpleNamespace
from typing import Any

from clients import flower_private as private

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("defenses", "attacks", "clients", "strategies", "simulations")
PUBLIC = ("app", "clientapp", "clientapp.mod", "common", "serverapp", "serverapp.strategy", "simulation")
"""Modules of Flower whose ``__all__`` is its public interface."""
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
    return module.removeprefix("flwr.") in PUBLIC and (not name or name in import_module(module).__all__)


def message() -> Any:
    from flwr.app import ConfigRecord, Message, RecordDict

    private.act_as_task()
    return Message(RecordDict({"config": ConfigRecord({"rounds": 3})}), 1, "train.probe")


def secagg() -> Any:
    """The private parts of Flower that a script of benchmarks/ uses."""
    return SimpleNamespace(**run_path(str(ROOT / "benchmarks" / "flower_apps" / "secagg_private.py")))


@cache
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


def found(function: Callable[..., Any]) -> bool:
    """Everything that a function imports from Flower is there; rounds of SecAgg+ are run by tests of benchmarks/."""
    for node in ast.walk(ast.parse(textwrap.dedent(inspect.getsource(function)))):
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("flwr"):
            assert all(hasattr(import_module(str(node.module)), alias.name) for alias in node.names), node.module
    return True


def wrapping() -> bool:
    """A function of training is closed over with its own mod, and the result with the app's mod, each by the two names."""
    app, outer, inner, train = wrapped()
    function = private.functions_of(app)["train.probe"]
    for expected in (outer, inner):
        held = inspect.getclosurevars(function).nonlocals
        assert function.__code__.co_freevars == private.WRAPPED, f"closes over {sorted(held)}"
        function, mod = (held[name] for name in private.WRAPPED)
        assert mod is expected, f"the mod is {mod!r}"
    return function is train


def message_ids() -> bool:
    from flwr.app import Message

    asked = message()
    private.set_message_id(asked, "asked")
    return (asked.metadata.message_id, Message(asked.content, reply_to=asked).metadata.reply_to_message_id) == (
        "asked",
    ) * 2


def worker_options() -> bool:
    from flwr.simulation.ray_transport.ray_actor import ClientAppActor

    return private.worker_options() is not None and bool(ClientAppActor.options(max_restarts=-1, max_task_retries=1))


def sooner() -> bool:
    """The function that looks for messages is still there, and waits by the event that it is given."""
    module: Any = import_module("flwr.server.superlink.fleet.vce.vce_api")
    before, stop, waits = module.add_messages_to_queue, Event(), list[float]()
    stop.wait = lambda seconds: waits.append(seconds) or stop.set()  # type: ignore[method-assign]
    private.look_for_messages_sooner()
    try:
        module.add_messages_to_queue(None, None, {}, stop)
    finally:
        module.add_messages_to_queue = before
    return len(waits) == 1 and waits[0] < 0.1


def superlink_constants() -> bool:
    """Both constants are seconds, and the functions that start and find a SuperLink read them."""
    module: Any = private.local_superlink()
    source = inspect.getsource(module)
    return all(isinstance(getattr(module, name), float) and source.count(name) > 1 for name in PATIENCE)


def public_names() -> bool:
    """Flower's public modules have every name that fedveil imports from them."""
    files = [path for package in PACKAGES for path in (ROOT / package).rglob("*.py")]
    names = {(module, name) for path in files for _, module, name in imports(path) if is_public(module, "")}
    missing = sorted(f"{module}.{name}" for module, name in names if not is_public(module, name))
    assert not missing, ", ".join(missing)
    return True


CHECKS: dict[str, Callable[[], Any]] = {
    "simulation_worker": lambda: import_module(private.SIMULATION_WORKER), "wrapped": wrapping,
    "act_as_task": lambda: message().content["config"]["rounds"] == 3, "set_message_id": message_ids,
    "to_wire": lambda: b"rounds" in private.to_wire(message()).content.SerializeToString(),
    "from_wire": lambda: private.from_wire(private.to_wire(message())).content["config"]["rounds"] == 3,
    "error_code": lambda: 0 < private.error_code("MESSAGE_UNAVAILABLE") < 1000,
    "functions_of": lambda: list(private.functions_of(wrapped()[0])) == ["train.probe"],
    "mods_around": lambda: list(private.mods_around(wrapped()[0])) == [wrapped()[1]],
    "has_client_fn": lambda: not private.has_client_fn(wrapped()[0]),
    "worker_options": worker_options, "look_for_messages_sooner": sooner, "local_superlink": superlink_constants,
    "flower_command": lambda: inspect.signature(private.flower_command()).bind(),
    "secagg_plus_app": lambda: found(secagg().secagg_plus_app) and secagg().secagg_plus_app(lambda client: ([], 1)),
    "secagg_plus_round": lambda: found(secagg().secagg_plus_round),
    "masked_parameters": lambda: found(secagg().masked_parameters), "public_names": public_names,
}  # fmt: skip


def main() -> int:
    print(f"Flower {version('flwr')}")
    failed = 0
    for name, check in CHECKS.items():
        try:
            assert check(), "it is called or answers in another way"
            print(f"  ok      {name}")
        except Exception as error:
            failed += 1
            print(f"  FAILED  {name}: {type(error).__name__}: {error}")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
