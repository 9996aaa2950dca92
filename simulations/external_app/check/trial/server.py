"""A ServerApp's ``main``, run with a stand-in Grid until its first messages of training are there."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NoReturn

from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import Strategy

from simulations.runtime.local_grid import FIRST_NODE, LocalGrid
from strategies.recording.wrapper import WrappingStrategy

PATIENT = 3
"""Requests for the nodes that get the same answer; from then on more nodes are reported, so that no loop waits for them."""
NODES_ARE_MANY = 1_000


class EnoughSeenError(BaseException):
    """The messages of training are there. No handler of ``Exception`` in the app stops it."""


class StandInGrid(LocalGrid):
    """Reports nodes that there are not, and keeps the first messages of training; then the server ends.

    Args:
        nodes: Number of nodes that are reported at first.
    """

    def __init__(self, nodes: int) -> None:
        super().__init__(0)
        self.nodes = nodes
        self.messages: list[Message] = []
        self._asked = 0

    def get_node_ids(self) -> list[int]:
        """As many node ids as the server requests; more, when it repeats the request."""
        self._asked += 1
        more = 2 ** max(0, self._asked - PATIENT)
        return list(range(FIRST_NODE, FIRST_NODE + min(self.nodes * more, max(self.nodes, NODES_ARE_MANY))))

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """Ends the server at messages of training; no node answers others."""
        self.messages = [one for one in messages if one.metadata.message_type.partition(".")[0] == "train"]
        if self.messages:
            raise EnoughSeenError
        return []


def run_server(app: ServerApp, run_config: dict[str, Any], nodes: int, refused: list[str]) -> dict[str, Any]:
    """Start the server; returns its strategy, rounds, initial arrays and the messages of its first round.

    Where it ended before its first messages of training, ``refused`` names why.
    """
    if getattr(app, "_main", None) is None:
        refused.append("the ServerApp is of the older interface: it has no @app.main()")
        return {}
    grid = StandInGrid(nodes)
    found: dict[str, Any] = {}
    failed = list[str]()
    _watch_starts(found, failed)
    try:
        app(grid, Context(1, 1, {}, RecordDict(), run_config))
        failed.append("its main ended without a message of training")
    except EnoughSeenError:
        pass
    except BaseException as error:
        failed.append(f"its main raised {type(error).__name__}: {str(error)[:500]}")
    if not grid.messages:
        why = failed[0] if failed else "its strategy gave no message of training"
        refused.append(
            f"the first round of the ServerApp was not seen, as {why} (the check has no network and loads no data)"
        )
        return found
    if "strategy" not in found:
        refused.append(
            "the ServerApp sends its messages of training itself: audited wraps a strategy of flwr.serverapp.strategy"
        )
    content = grid.messages[0].content
    values = (pair for record in content.config_records.values() for pair in record.items())
    records = list(content.array_records.values())
    if len(records) != 1:
        refused.append(
            f"the message of training holds {len(records)} ArrayRecords; an audit needs one, with all weights"
        )
    return found | {
        "asked": len(grid.messages),
        "message": {key: value for key, value in values if isinstance(value, bool | int | float | str)},
        "arrays": [[name, list(array.shape)] for record in records for name, array in record.items()],
    }


def _watch_starts(found: dict[str, Any], failed: list[str]) -> None:
    """Put in the place of every strategy's ``start`` one that asks for the messages of round 1 and ends the server.

    The strategy's own would evaluate on the server's data first.
    """
    for kind in list(_below(Strategy)):
        if "start" in vars(kind):
            kind.start = _watched(kind.start, found, failed)


def _below(kind: Any) -> Iterator[Any]:
    yield kind
    for one in kind.__subclasses__():
        yield from _below(one)


def _watched(original: Callable[..., Any], found: dict[str, Any], failed: list[str]) -> Callable[..., NoReturn]:
    def start(strategy: Strategy, *args: Any, **kwargs: Any) -> NoReturn:
        bound = inspect.signature(original).bind(strategy, *args, **kwargs)
        bound.apply_defaults()
        given = bound.arguments | bound.arguments.get("kwargs", {})
        grid, arrays, rounds = (given.get(name) for name in ("grid", "initial_arrays", "num_rounds"))
        chain = list(_chain(strategy))
        waits_for = max((int(getattr(one, "min_available_nodes", 0) or 0) for one in chain), default=0)
        names = [type(one).__name__ for one in chain]
        found.update(strategy=names, rounds=rounds if isinstance(rounds, int) else 0, waits_for=waits_for)
        if isinstance(grid, StandInGrid) and isinstance(arrays, ArrayRecord):
            grid.nodes = max(grid.nodes, waits_for)
            inner = next(one for one in chain if not isinstance(one, WrappingStrategy))
            try:
                grid.push_messages(inner.configure_train(1, arrays, given.get("train_config") or ConfigRecord(), grid))
            except Exception as error:
                failed.append(f"configure_train raised {type(error).__name__}: {str(error)[:300]}")
        raise EnoughSeenError

    return start


def _chain(strategy: Any) -> Iterator[Any]:
    """A strategy and what it wraps."""
    seen: set[int] = set()
    while isinstance(strategy, Strategy) and id(strategy) not in seen:
        seen.add(id(strategy))
        yield strategy
        strategy = vars(strategy).get("strategy")
