"""What an audit checks before it begins, and what it records besides scores: failures, and what the app says of itself."""

from __future__ import annotations

from collections.abc import Sequence
from logging import INFO, WARNING

from flwr.app import Message
from flwr.common import log
from flwr.serverapp.strategy import Result

from attacks.metrics.training import CLIENT
from clients.external_app.mods import Budget
from clients.external_app.plan import AppPlan
from clients.task.task import Task
from clients.wire.records import MAX_REASON, REFUSED
from clients.wire.texts import one_line
from strategies.external_app.claim import REPORTED, ReportedAccuracy
from strategies.external_app.claimed_privacy import PrivacyClaims
from strategies.external_app.orders import STEPS_FROM, Orders
from strategies.external_app.results import OpenResults, Results
from strategies.external_app.settings import ENOUGH, AuditSettings

NO_RATE = "learning rate: unknown; give audited(..., learning_rate=...), or send it as lr or learning-rate"
NO_STEPS = f"{STEPS_FROM} are unknown; give audited(..., local_epochs=..., batch_size=...), or send them"


NO_REPLY = "no attacked round had a reply"


class AuditError(RuntimeError):
    """An audit that cannot begin, or that attacked nothing.

    Attributes:
        reasons: Each a sentence.
        result: Where rounds ran, what the wrapped strategy's ``start`` returned; else None.
    """

    def __init__(self, reasons: Sequence[str], what: str = "the audit cannot begin") -> None:
        listed = "".join(f"\n- {one}" for one in reasons)
        super().__init__(f"{what}:{listed}\nWith go_on=True the run goes on all the same.")
        self.reasons = tuple(reasons)
        self.result: Result | None = None


def missing(
    settings: AuditSettings, server_round: int, messages: Sequence[Message], ordered: Sequence[Orders]
) -> list[str]:
    """Settings that neither messages, app nor arguments contain; without them nothing can be attacked."""
    found = []
    if not all(one.learning_rate > 0 for one in ordered):
        named = sorted({key for message in messages for of in message.content.config_records.values() for key in of})
        found.append(f"{NO_RATE}. The messages of round {server_round} hold {', '.join(named) or 'no setting'}")
    if not (settings.canaries or settings.attacks_on_probes()) and not any(one.knows_steps for one in ordered):
        found.append(f"{NO_STEPS}. probe_attacks names no attack either")
    return found


def say_how_many(nodes: int, each: int, images: int) -> None:
    """Log how many images an attacked round probes at most: ``each`` probes of so many images from every node that replies."""
    total = nodes * each * images
    log(
        INFO if total >= ENOUGH else WARNING,
        "Audit: one-step probes of up to %s images in an attacked round (%s x %s from each of %s nodes, if all reply); "
        "a verdict needs %s",
        total, each, images, nodes, ENOUGH,
    )  # fmt: skip


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
