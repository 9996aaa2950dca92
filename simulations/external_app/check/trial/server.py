"""A ServerApp's ``main``, run with a stand-in Grid until its first messages of training are there."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import Strategy

from clients.flower_private import act_as_task
from simulations.external_app.check.trial.surroundings import OutOfTimeError, at_most
from strategies.recording.wrapper import WrappingStrategy

FIRST_NODE = 100
PATIENT = 3
"""Requests for the nodes that get the same answer; from then on more nodes are reported, so that no loop waits for them."""
NODES_ARE_MANY = 1_000


class EnoughSeenError(BaseException):
    """The messages of training are there. No handler of ``Exception`` in the app stops it."""


class StandInGrid(Grid):
    """Reports nodes that there are not, and keeps the first messages of training; then the server ends.

    Args:
        nodes: Number of nodes that are reported at first.
    """

    def __init__(self, nodes: int) -> None:
        act_as_task()
        self.nodes = nodes
        self.messages: list[Message] = []
        self.others: list[str] = []
        """Types of messages before training, which no node answers."""
        self._asked = 0
        self._run: Any = None

    @property
    def run(self) -> Any:
        """The run set by ``set_run``."""
        return self._run

    def set_run(self, run: Any) -> None:
        """Keeps the run."""
        self._run = run

    def create_message(self, *args: Any, **kwargs: Any) -> Message:
        """Not offered: messages are made by their class."""
        raise NotImplementedError("make messages by flwr.app.Message")

    def get_node_ids(self) -> list[int]:
        """As many node ids as the server requests; more, when it repeats the request."""
        self._asked += 1
        more = 2 ** max(0, self._asked - PATIENT)
        return list(range(FIRST_NODE, FIRST_NODE + min(self.nodes * more, max(self.nodes, NODES_ARE_MANY))))

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """Ends the server at messages of training."""
        came = list(messages)
        self.messages = [one for one in came if one.metadata.message_type.partition(".")[0] == "train"]
        if self.messages:
            raise EnoughSeenError
        self.others += [one.metadata.message_type for one in came]
        return []

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """No node answers."""
        return []

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        """Ends the server at messages of training; no node answers others."""
        self.push_messages(messages)
        return []


def run_server(app: ServerApp, run_config: dict[str, Any], nodes: int, seconds: float) -> dict[str, Any]:
    """Start the server; returns its strategy, rounds, initial arrays and the messages of its first round.

    ``failed`` says why it ended before its first messages of training; "" when they came.
    """
    grid = StandInGrid(nodes)
    found: dict[str, Any] = {"failed": "", "by_strategy": False}
    context = Context(1, 1, {}, RecordDict(), run_config)
    try:
        with _watched_starts(found), at_most(seconds):
            app(grid, context)
        found["failed"] = "its main ended without a message of training"
    except EnoughSeenError:
        pass
    except OutOfTimeError:
        found["failed"] = f"its main sent no message of training within {seconds:g} s"
    except BaseException as error:
        found["failed"] = f"its main raised {type(error).__name__}: {str(error)[:500]}"
    found |= {"types_before": sorted(set(grid.others))}
    if grid.messages:
        _keep_messages(grid.messages, found)
    return found


def _keep_messages(messages: list[Message], found: dict[str, Any]) -> None:
    content = messages[0].content
    found["asked"] = len(messages)
    found["message_type"] = messages[0].metadata.message_type
    found["config"] = {
        key: value for record in content.config_records.values() for key, value in record.items() if _is_plain(value)
    }
    records = list(content.array_records.values())
    found["array_records"] = len(records)
    if records and "arrays" not in found:
        found["arrays"] = arrays_of(records[0])


def _is_plain(value: Any) -> bool:
    return isinstance(value, bool | int | float | str)


def arrays_of(record: ArrayRecord) -> list[list[Any]]:
    """Name, shape and type of each array."""
    return [[name, list(array.shape), array.dtype] for name, array in record.items()]


@contextmanager
def _watched_starts(found: dict[str, Any]) -> Iterator[None]:
    """In the place of every strategy's ``start``, one that asks for the messages of round 1 and ends the server.

    The strategy's own would evaluate on the server's data first.
    """
    kinds = [one for one in _below(Strategy) if "start" in vars(one)]
    before = {one: vars(one)["start"] for one in kinds}
    for one, original in before.items():
        one.start = _watched(original, found)
    try:
        yield
    finally:
        for one, original in before.items():
            one.start = original


def _below(kind: Any) -> Iterator[Any]:
    yield kind
    for one in kind.__subclasses__():
        yield from _below(one)


def _watched(original: Callable[..., Any], found: dict[str, Any]) -> Callable[..., NoReturn]:
    def start(strategy: Strategy, *args: Any, **kwargs: Any) -> NoReturn:
        bound = inspect.signature(original).bind(strategy, *args, **kwargs)
        bound.apply_defaults()
        given = bound.arguments | bound.arguments.get("kwargs", {})
        grid, arrays = given.get("grid"), given.get("initial_arrays")
        chain = list(_chain(strategy))
        found.update({
            "by_strategy": True, "strategy": [type(one).__name__ for one in chain], "rounds": given.get("num_rounds"),
            "waits_for": max((int(getattr(one, "min_available_nodes", 0) or 0) for one in chain), default=0),
            "wrapped": [type(one).__name__ for one in chain if isinstance(one, WrappingStrategy)],
        })  # fmt: skip
        if isinstance(arrays, ArrayRecord):
            found["arrays"] = arrays_of(arrays)
        config = given.get("train_config") or ConfigRecord()
        found["config"] = {key: value for key, value in config.items() if _is_plain(value)}
        if isinstance(grid, StandInGrid) and isinstance(arrays, ArrayRecord):
            grid.nodes = max(grid.nodes, found["waits_for"])
            inner = next(one for one in chain if not isinstance(one, WrappingStrategy))
            try:
                grid.push_messages(inner.configure_train(1, arrays, config, grid))
            except Exception as error:
                found["unasked"] = f"configure_train raised {type(error).__name__}: {str(error)[:300]}"
        raise EnoughSeenError

    return start


def _chain(strategy: Any) -> Iterator[Any]:
    """A strategy and what it wraps."""
    seen: set[int] = set()
    while isinstance(strategy, Strategy) and id(strategy) not in seen:
        seen.add(id(strategy))
        yield strategy
        strategy = vars(strategy).get("strategy")
