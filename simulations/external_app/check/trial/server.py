"""What a trial sees of a ServerApp: its strategy and the first messages of training, sent to a stand-in Grid."""

from __future__ import annotations

import inspect
import linecache
import sys
from collections.abc import Callable, Iterable
from types import FrameType
from typing import Any, NoReturn

from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import Strategy

from simulations.runtime.local_grid import FIRST_NODE, LocalGrid
from strategies.recording.wrapper import WrappingStrategy, chain_of

PATIENT = 3
"""Requests for the nodes that get the same answer; from then on more nodes are reported, so that no loop waits for them."""
NODES_ARE_MANY = 1_000
OFTEN = 10
"""Requests other than of training after which a server is ended."""


class EnoughSeenError(BaseException):
    """The messages of training are there. No handler of ``Exception`` in the app stops it."""


class StandInGrid(LocalGrid):
    """Reports nodes that there are not, ``nodes`` of them at first, and ends the server at messages of training, which it keeps."""

    def __init__(self, nodes: int) -> None:
        super().__init__(0)
        self.nodes = nodes
        self.messages: list[Message] = []
        self.others: list[str] = []
        self._asked = 0

    def get_node_ids(self) -> list[int]:
        """As many node ids as the server requests; more, when it repeats the request."""
        self._asked += 1
        more = 2 ** max(0, self._asked - PATIENT)
        return list(range(FIRST_NODE, FIRST_NODE + min(self.nodes * more, max(self.nodes, NODES_ARE_MANY))))

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """Ends the server at messages of training, and where it sent others often; no node answers those."""
        sent = list(messages)
        self.messages = [one for one in sent if one.metadata.message_type.partition(".")[0] == "train"]
        self.others += [one.metadata.message_type for one in sent[:1]]
        if self.messages or len(self.others) > OFTEN:
            raise EnoughSeenError
        return []


def run_server(
    app: ServerApp, run_config: dict[str, Any], nodes: int, refused: list[str]
) -> tuple[dict[str, Any], Message | None]:
    """Start the server; returns its strategy, rounds and initial arrays, and the first message of training.

    Where it ended before its first messages of training, ``refused`` names why.
    """
    if getattr(app, "_main", None) is None:
        refused.append("the ServerApp is of the older interface: it has no @app.main()")
        return {}, None
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
        why = failed[0] if failed else "it gave no message of training"
        others = f", after its message {grid.others[0]!r}, which no node answers here" if grid.others else ""
        refused.append(
            f"the first round of the ServerApp was not seen, as {why}{others} (the check offers neither network nor data)"
        )
        return found, None
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
    facts = {
        "asked": len(grid.messages),
        "message": {key: value for key, value in values if isinstance(value, bool | int | float | str)},
        "arrays": [[name, list(array.shape)] for record in records for name, array in record.items()],
    }
    return found | facts, grid.messages[0]


def _watch_starts(found: dict[str, Any], failed: list[str]) -> None:
    """Put in the place of every strategy's ``start`` one that asks for the messages of round 1 and ends the server.

    The strategy's own would evaluate on the server's data first.
    """
    kinds: list[Any] = [Strategy]
    for kind in kinds:  # which grows
        kinds += kind.__subclasses__()
        if "start" in vars(kind):
            kind.start = _watched(kind.start, found, failed)


def _watched(original: Callable[..., Any], found: dict[str, Any], failed: list[str]) -> Callable[..., NoReturn]:
    def start(strategy: Strategy, *args: Any, **kwargs: Any) -> NoReturn:
        bound = inspect.signature(original).bind(strategy, *args, **kwargs)
        bound.apply_defaults()
        given = bound.arguments | bound.arguments.get("kwargs", {})
        grid, arrays, rounds = (given.get(name) for name in ("grid", "initial_arrays", "num_rounds"))
        chain = chain_of(strategy)
        waits_for = max((int(getattr(one, "min_available_nodes", 0) or 0) for one in chain), default=0)
        names = [type(one).__name__ for one in chain]
        found.update(strategy=names, rounds=rounds if isinstance(rounds, int) else 0, waits_for=waits_for)
        found["start"] = _place(strategy, sys._getframe(1))
        if isinstance(grid, StandInGrid) and isinstance(arrays, ArrayRecord):
            grid.nodes = max(grid.nodes, waits_for)
            inner = next(one for one in chain if not isinstance(one, WrappingStrategy))
            try:
                grid.push_messages(inner.configure_train(1, arrays, given.get("train_config") or ConfigRecord(), grid))
            except Exception as error:
                failed.append(f"configure_train raised {type(error).__name__}: {str(error)[:300]}")
        raise EnoughSeenError

    return start


def _place(strategy: Strategy, caller: FrameType) -> dict[str, Any]:
    """Where the rounds start: file, line and its indentation, and what the app calls its strategy and context there, or ""."""
    file, line = caller.f_code.co_filename, caller.f_lineno
    text, known = linecache.getline(file, line), caller.f_locals.items()
    return {
        "file": file, "line": line, "indent": len(text) - len(text.lstrip()),
        "strategy": next((name for name, value in known if value is strategy), ""),
        "context": next((name for name, value in known if isinstance(value, Context)), ""),
    }  # fmt: skip
