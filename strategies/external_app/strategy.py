"""AuditingStrategy: a wrapper of any Flower strategy that attacks the clients' updates."""

from collections.abc import Callable, Iterable
from logging import WARNING
from typing import Any

from flwr.app import Message, MetricRecord
from flwr.common import log
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from strategies.external_app.claim import CLIENTS
from strategies.external_app.claimed_privacy import wrappers_in
from strategies.external_app.observer import AppAudit
from strategies.external_app.record import AuditError, Gate, OpenResults
from strategies.external_app.settings import AuditSettings
from strategies.recording.wrapper import WrappingStrategy


class AuditingStrategy(WrappingStrategy):
    """Run a wrapped strategy and attack the clients' updates in parallel; the clients score the guesses.

    Wrap the outermost strategy: Flower's wrappers for differential privacy clip replies in place. The clients' app must have
    called ``clients.answer_audits``. An error of the audit is logged, and gets a row. Three errors end the run with ``AuditError``,
    after the page was written, unless ``settings.go_on``: the audit cannot begin (before the first round), a limit is broken
    (before the next, or after the last), or nothing was attacked (after the last).

    Args:
        strategy: Any strategy of Flower's message API; unknown attributes of this class are those of ``strategy``.
        open_results: Opens the storage of rows and pictures.
        settings: Settings of the audit.
        gate: Says which limits are broken; where there are any, no further round begins. None: there are no limits.
    """

    def __init__(
        self, strategy: Strategy, open_results: OpenResults, settings: AuditSettings, gate: Gate | None = None
    ) -> None:
        super().__init__(strategy, settings.rounds)
        self._audit = AppAudit(open_results, settings, gate)
        self._audit.record.claims.wrappers = wrappers_in(strategy)

    def start(self, *args: Any, **kwargs: Any) -> Result:
        """Run ``start`` of the wrapped strategy, audited."""
        if callable(evaluate := kwargs.get("evaluate_fn")):
            kwargs["evaluate_fn"] = self._audit.record.accuracy.observed(evaluate)
        result = super().start(*args, **kwargs)
        try:
            self._audit.require_attacked()
        except AuditError as error:
            error.result = result
            raise
        return result

    def finish(self) -> None:
        """End the audit as ``WrappingStrategy`` does; ``AuditError`` where nothing was attacked."""
        super().finish()
        self._audit.require_attacked()

    def _end(self) -> None:
        self._safely("report", max(self._audit.settings.rounds), self._audit.finish)
        super()._end()

    def _said(self) -> str:
        return f"Audited: rounds {', '.join(map(str, self._audit.settings.rounds))}"

    def _sending(self, server_round: int, messages: list[Message], grid: Grid) -> None:
        """In an attacked round, request probes from the nodes of the messages first."""
        self._safely(f"round {server_round}", server_round, self._audit.before, server_round, messages, grid)

    def _received(self, server_round: int, kind: str, replies: list[Message]) -> None:
        """Pass the replies to training to the audit; claims are of all rounds, attacked or not."""
        for step in (self._audit.record.observe, self._audit.after) if kind == "train" else ():
            self._safely(f"round {server_round}", server_round, step, server_round, replies)

    def _evaluated(self, server_round: int, metrics: MetricRecord | None) -> None:
        keep = self._audit.record.accuracy.observe
        self._safely(f"round {server_round}", server_round, keep, CLIENTS, server_round, metrics)

    def _safely(self, where: str, server_round: int, step: Callable[..., None], *args: Any) -> None:
        """A failed audit costs its rows, not the run: the reason is in the log and, where it can be written, in a row."""
        try:
            step(*args)
        except AuditError as error:
            self._note(server_round, error.reasons)
            if not self._audit.settings.go_on:
                raise
            log(WARNING, "Audit: %s", error)
        except Exception as error:
            why = f"{where}: {type(error).__name__}: {error}"
            log(WARNING, "Audit: %s", why)
            self._note(server_round, [why])

    def _note(self, server_round: int, reasons: Iterable[str]) -> None:
        for reason in reasons:
            try:
                self._audit.record.note(server_round, reason)
            except Exception as unwritten:
                log(WARNING, "Audit: no row says so: %s: %s", type(unwritten).__name__, unwritten)
