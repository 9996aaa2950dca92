"""AuditingStrategy: any strategy of Flower, run by a curious server that attacks what clients of somebody's own app send."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from logging import INFO, WARNING
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.common.logger import log
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from strategies.audited.curiosity import Curiosity
from strategies.audited.results import OpenResults
from strategies.audited.settings import AuditSettings

HOOKS = ("configure_train", "aggregate_train")


class AuditingStrategy(Strategy):
    """Does what the wrapped strategy does, and attacks what clients send beside the rounds; the clients score the guesses.

    Wrap the outermost strategy: Flower's wrappers for differential privacy clip replies in place. The clients' app must have
    called ``clients.answer_audits``. What goes wrong in an audit is logged, and never ends a run.

    Args:
        strategy: Any strategy of Flower's message API; attributes that this class lacks are its.
        open_results: Opens what keeps rows and pictures.
        settings: What is attacked, and how.
    """

    def __init__(self, strategy: Strategy, open_results: OpenResults, settings: AuditSettings) -> None:
        self.strategy = strategy
        self._curiosity = Curiosity(open_results, settings)
        self._inner = {name: getattr(strategy, name) for name in HOOKS}

    def __getattr__(self, name: str) -> Any:
        if name in ("strategy", "_inner"):  # while a copy is being made, before they are there
            raise AttributeError(name)
        return getattr(self.strategy, name)

    def start(self, *args: Any, **kwargs: Any) -> Result:
        """``start`` of the wrapped strategy with this class's hooks in it; returns when all attacks are scored."""
        for name in HOOKS:
            setattr(self.strategy, name, getattr(self, name))
        try:
            return self.strategy.start(*args, **kwargs)
        finally:
            for name in HOOKS:
                delattr(self.strategy, name)
            self.finish()

    def finish(self) -> None:
        """Waits for the attacks and writes the report; a loop of one's own calls it behind the last round."""
        self._safely("report", max(self._curiosity.settings.rounds), self._curiosity.finish)

    def summary(self) -> None:
        """That of the wrapped strategy."""
        self.strategy.summary()
        log(INFO, "\t└──> Audited: rounds %s", sorted(self._curiosity.settings.rounds))

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """The messages of the wrapped strategy; in an attacked round their nodes are asked for probes first."""
        messages = list(self._inner["configure_train"](server_round, arrays, config, grid))
        self._safely(f"round {server_round}", server_round, self._curiosity.before, server_round, messages, grid)
        return messages

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Looks at the replies, then lets the wrapped strategy aggregate them."""
        received = list(replies)
        self._safely(f"round {server_round}", server_round, self._curiosity.after, server_round, received)
        result: tuple[ArrayRecord | None, MetricRecord | None] = self._inner["aggregate_train"](server_round, received)
        return result

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """The messages of the wrapped strategy."""
        return self.strategy.configure_evaluate(server_round, arrays, config, grid)

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """As the wrapped strategy does."""
        return self.strategy.aggregate_evaluate(server_round, replies)

    def _safely(self, where: str, server_round: int, step: Callable[..., None], *args: Any) -> None:
        """An audit that fails costs its rows, not the run: why is in the log and, where it can be written, in a row."""
        try:
            step(*args)
        except Exception as error:
            log(WARNING, "Audit: %s: %s: %s", where, type(error).__name__, error)
            try:
                self._curiosity.note(server_round, f"{where}: {type(error).__name__}: {error}")
            except Exception as unwritten:
                log(WARNING, "Audit: no row says so: %s: %s", type(unwritten).__name__, unwritten)
