"""Base of strategies around another one: hooks in its ``start``, its attributes, and the observed rounds."""

from collections.abc import Iterable
from itertools import islice
from logging import INFO, WARNING
from numbers import Integral
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.common import log
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from clients.wire.texts import log_plainly

HOOKS = ("configure_train", "aggregate_train", "configure_evaluate", "aggregate_evaluate", "summary")
NAMED = 5
"""Rounds that are named one by one."""


def whole_rounds(rounds: Any) -> tuple[int, ...]:
    """Server rounds in order, each once; ``ValueError`` unless they are whole numbers from 1."""
    # Neither characters of a text nor keys of a mapping are meant as rounds.
    listed = () if isinstance(rounds, str | bytes) or not isinstance(rounds, Iterable) else tuple(rounds)
    good = [int(at) for at in listed if isinstance(at, Integral) and not isinstance(at, bool) and int(at) >= 1]
    if not good or len(good) < len(listed):
        raise ValueError(f"rounds is {rounds!r}; allowed: numbers of server rounds, from 1, such as [1, 5]")
    return tuple(sorted(set(good)))


class WrappingStrategy(Strategy):
    """Run a wrapped strategy; subclasses observe its messages and replies.

    Unknown attributes of this class are those of the wrapped strategy.

    Args:
        strategy: Any strategy of Flower's message API.
        rounds: Server rounds that are observed; None: all.

    Raises:
        TypeError: When ``strategy`` is no strategy, such as a class in place of an object.
        ValueError: When ``rounds`` are no numbers of rounds.
    """

    def __init__(self, strategy: Strategy, rounds: Iterable[int] | None = None) -> None:
        require_strategy(strategy)
        log_plainly()
        self.strategy = strategy
        self._rounds = None if rounds is None else whole_rounds(rounds)
        self._came: set[int] = set()
        self._inner: dict[str, Any] = {}
        """The wrapped strategy's own hooks, while this one's are in their place."""

    def __getattr__(self, name: str) -> Any:
        if name in ("strategy", "_inner"):  # while a copy is being made, before they are there
            raise AttributeError(name)
        return getattr(self.strategy, name)

    def __setattr__(self, name: str, value: Any) -> None:
        mine = name == "strategy" or name.startswith("_") or hasattr(type(self), name)
        if mine or not hasattr(self.strategy, name):
            super().__setattr__(name, value)
        else:
            setattr(self.strategy, name, value)

    def start(self, *args: Any, **kwargs: Any) -> Result:
        """Run ``start`` of the wrapped strategy with this one's hooks, and then ``finish``."""
        own = vars(self.strategy)
        before = {name: own[name] for name in HOOKS if name in own}
        self._inner = {name: getattr(self.strategy, name) for name in HOOKS}
        try:
            for name in HOOKS:
                setattr(self.strategy, name, getattr(self, name))
            return self.strategy.start(*args, **kwargs)
        finally:
            for name in HOOKS:
                own.pop(name, None)
            own.update(before)
            self._inner = {}
            self._end()

    def finish(self) -> None:
        """End the recording or the audit, those of inner strategies first; ``start`` calls it after the last round."""
        inner = getattr(self.strategy, "finish", None)
        if callable(inner):
            inner()
        self._end()

    def _end(self) -> None:
        missed = [at for at in self._rounds or () if at not in self._came]
        if missed:
            named = ", ".join(map(str, islice(missed, NAMED)))
            more = f" and {len(missed) - NAMED} more" if len(missed) > NAMED else ""
            log(WARNING, "%s: asked for rounds that never came: %s%s", type(self).__name__, named, more)

    def _wrapped(self, hook: str) -> Any:
        return self._inner.get(hook) or getattr(self.strategy, hook)

    def _looks_at(self, server_round: int) -> bool:
        return self._rounds is None or server_round in self._rounds

    def _said(self) -> str:
        return type(self).__name__

    def summary(self) -> None:
        """Summary of the wrapped strategy, and a line about this one."""
        self._wrapped("summary")()
        log(INFO, "\t└──> %s", self._said())

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """The messages of the wrapped strategy, which ``_sending`` sees before they are sent."""
        self._came.add(server_round)
        messages: list[Message] = list(self._wrapped("configure_train")(server_round, arrays, config, grid))
        self._sending(server_round, messages, grid)
        return messages

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Aggregate as the wrapped strategy does the replies, which ``_received`` sees first: a strategy may change them."""
        received = list(replies)
        self._received(server_round, "train", received)
        result: tuple[ArrayRecord | None, MetricRecord | None] = self._wrapped("aggregate_train")(
            server_round, received
        )
        return result

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """The messages of the wrapped strategy."""
        messages: Iterable[Message] = self._wrapped("configure_evaluate")(server_round, arrays, config, grid)
        return messages

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Aggregate as the wrapped strategy does; ``_received`` sees the replies first, and ``_evaluated`` the result."""
        received = list(replies)
        self._received(server_round, "evaluate", received)
        result: MetricRecord | None = self._wrapped("aggregate_evaluate")(server_round, received)
        self._evaluated(server_round, result)
        return result

    def _sending(self, server_round: int, messages: list[Message], grid: Grid) -> None:
        """Look at a round's messages of training, and use the grid before they are sent."""

    def _received(self, server_round: int, kind: str, replies: list[Message]) -> None:
        """Look at replies to messages of the ``kind`` "train" or "evaluate"."""

    def _evaluated(self, server_round: int, metrics: MetricRecord | None) -> None:
        """Look at what the wrapped strategy makes of replies to evaluation."""


def chain_of(strategy: Any) -> list[Strategy]:
    """A strategy and those inside it, outermost first: Flower's wrappers call theirs ``strategy``, too."""
    chain: list[Strategy] = []
    while isinstance(strategy, Strategy) and not any(strategy is layer for layer in chain):
        chain.append(strategy)
        strategy = getattr(strategy, "strategy", None)
    return chain


def require_strategy(strategy: object) -> None:
    """Raise ``TypeError`` for anything but an object of a strategy of Flower, such as its class."""
    if not isinstance(strategy, Strategy):
        raise TypeError(f"strategy is {strategy!r}; allowed: an object of a strategy of Flower, such as FedAvg()")
