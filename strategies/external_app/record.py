"""What an audit records besides scores: failures, and what the app says of itself."""

from __future__ import annotations

from collections.abc import Sequence

from flwr.app import Message

from attacks.metrics.training import CLIENT
from clients.external_app.mods import Budget
from clients.external_app.plan import AppPlan
from clients.task.task import Task
from clients.wire.records import MAX_REASON, REFUSED
from clients.wire.texts import one_line
from strategies.external_app.claimed_privacy import PrivacyClaims
from strategies.external_app.preflight import NO_REPLY
from strategies.external_app.reported_accuracy import REPORTED, ReportedAccuracy
from strategies.external_app.results import OpenResults, Results


class AuditRecord:
    """The results of an audit, which open when the app's mods are known, or at the end.

    A failure before that is kept, and becomes a row when the results open: every row names the mods of its client.

    Args:
        open_results: Opens the storage of rows and pictures.
        plan: What is known of the app before a node has replied.
        last: The last attacked round.

    Attributes:
        claims: What the app says about its differential privacy.
        accuracy: What the app's own evaluations report.
    """

    def __init__(self, open_results: OpenResults, plan: AppPlan, last: int) -> None:
        self.claims, self.accuracy = PrivacyClaims(), ReportedAccuracy()
        self._open, self._plan, self._last = open_results, plan, last
        self._results: Results | None = None
        self._early: list[tuple[int, str]] = []
        self._failures: dict[str, None] = {}
        """What could not be attacked, in order of appearance."""

    @property
    def attacked(self) -> bool:
        """Whether an attack has a score."""
        return self._results is not None and self._results.attacked()

    @property
    def failures(self) -> list[str]:
        """Why nothing was attacked."""
        return list(self._failures) or [NO_REPLY]

    def begin(self, plan: AppPlan) -> Results:
        """Open the results of an app whose plan is known, once; earlier failures become rows."""
        if self._results is None:
            self._results, self._plan = self._open(plan), plan
            while self._early:
                self._write(self._results, *self._early.pop(0))
        return self._results

    def note(self, server_round: int, message: str) -> None:
        """Add a row about a failure of the audit."""
        text = one_line(message, MAX_REASON)
        self._failures[text] = None
        if self._results is None:
            self._early.append((server_round, text))
        else:
            self._write(self._results, server_round, text)
            self._results.flush()

    def audited(self, failure: str) -> None:
        """Note that canaries tested the claims, or why they did not, of which there is a row already."""
        if failure:
            self._failures[failure] = None
        self.claims.tested = not failure

    def left_out(self, task: Task, message: str, partition: int | None = None, reply: Message | None = None) -> None:
        """Add a row about a client's message that could not be attacked."""
        refused = reply is not None and reply.has_error() and reply.error.code == REFUSED
        text = one_line(message, MAX_REASON)
        self._failures[text] = None
        status = "refused" if refused else "failed"
        results = self.begin(self._plan)
        results.row(task, metric=CLIENT.name, value=None, status=status, client=partition, message=text)

    def observe(self, server_round: int, replies: Sequence[Message], budgets: Sequence[Budget]) -> None:
        """Read the claims in a round's replies; they are on disk from then on, should the run end early."""
        self.claims.observe(server_round, replies)
        if self._results is not None:
            self._claim(self._results, budgets)
            self._results.flush()

    def finish(self, budgets: Sequence[Budget]) -> None:
        """Add the claims of all rounds and the app's own accuracy, and have the report written."""
        if not self._failures and not self.attacked:
            self.note(self._last, NO_REPLY)
        results = self.begin(self._plan)
        try:
            self._claim(results, budgets)
            if accuracy := self.accuracy.found():
                of = accuracy.to_json()
                results.row(self._plan.at(accuracy.round), metric=REPORTED, value=accuracy.value, reported=of)
        finally:
            results.finish()

    def _claim(self, results: Results, budgets: Sequence[Budget]) -> None:
        results.claim(self._plan.at(self._last), self.claims.found(self._plan.pipeline, budgets))

    def _write(self, results: Results, server_round: int, text: str) -> None:
        results.row(self._plan.at(server_round), metric="audit", value=None, status="failed", message=text)
