"""What an audit checks before it begins, its results and threat cards, failures, and what the app says of itself."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from logging import INFO, WARNING
from typing import Any, Protocol

from flwr.app import Message
from flwr.common import log
from flwr.serverapp.strategy import Result

from attacks.metrics.training import CLIENT
from clients.external_app.client import CROSS_ENTROPY
from clients.external_app.mods import ModBudget
from clients.external_app.plan import AppPlan
from clients.task.task import Task
from clients.wire.records import MAX_REASON, REFUSED
from clients.wire.texts import one_line
from strategies.audit.auditor import Auditor
from strategies.audit.jobs import Recorder
from strategies.audit.kinds import Kind, Seen
from strategies.audit.threat_card import Strength, ThreatCard
from strategies.external_app.claim import REPORTED, Claim, ReportedAccuracy
from strategies.external_app.claimed_privacy import PrivacyClaims
from strategies.external_app.settings import ENOUGH
from strategies.external_app.trainings import NOT_IN_PROBE, OBSERVED, SeenTraining
from strategies.federated.observations import PROBE

CLASSICAL = "; the mod's formula for its noise holds for an epsilon of at most 1 only (Dwork and Roth 2014, appendix A)"

UNIT = (
    "; neighbours: a client's whole data set replaced by any other; it covers weights alone, not num-examples and metrics, which "
    "the mod leaves as they are"
)


class Results(Recorder, Protocol):
    """Keep rows and pictures, and make a report of them."""

    def flush(self) -> None:
        """Write all rows and pictures so far."""

    def attacked(self) -> bool:
        """Whether an attack has a score."""

    def untried(self) -> list[str]:
        """Attacks that do not apply, with the reasons."""

    def claim(self, task: Task, claims: Sequence[Claim]) -> None:
        """Put the app's own privacy claim in the place of an earlier one: a row of ``task``, and an entry of every threat card."""

    def finish(self) -> None:
        """Judges the rows and writes the report."""


OpenResults = Callable[[AppPlan], Results]
"""Called once a node has reported what it has."""
Gate = Callable[["Results | None", Sequence[Claim]], Sequence[str]]
"""Says which limits the results, if they are open, and the app's claims break; empty where none is known to be broken."""


@dataclass(frozen=True)
class AppFacts:
    """Facts about an app for threat cards, besides its plan.

    Attributes:
        loss: The app's name of its loss.
        budgets: Privacy budget per message of each of the app's mods for local differential privacy.
        probes: Number of one-step probes of each client in an attacked round.
        training: The first client's.
    """

    training: SeenTraining
    loss: str = CROSS_ENTROPY
    budgets: Sequence[ModBudget] = ()
    probes: int = 0

    @property
    def spent(self) -> str:
        """The budget of an attacked round by basic composition (Dwork and Roth 2014, theorem 3.16); "" where no mod has one."""
        if not self.budgets:
            return ""
        if broken := [mod for mod in self.budgets if not mod.holds]:
            return "; ".join(
                f"LocalDpMod is set to ({mod.epsilon:g}, {mod.delta:g}) a message, which its noise does not give: it is for a "
                f"sensitivity of {mod.sensitivity:g}, and two updates of norm {mod.clipping_norm:g} lie up to {mod.farthest:g} "
                "apart; there is no budget"
                for mod in broken
            )
        epsilon, delta = sum(budget.epsilon for budget in self.budgets), sum(budget.delta for budget in self.budgets)
        count = self.probes + 1
        return (
            f"LocalDpMod is set to ({epsilon:g}, {delta:g}) a message: by basic composition {count} x that, ({count * epsilon:g}, "
            f"{count * delta:g}), for each client and attacked round, {self.probes} x that for the probes alone"
            f"{CLASSICAL if max(budget.epsilon for budget in self.budgets) > 1 else ''}{UNIT}"
        )


class AppAuditor(Auditor):
    """The auditor of an external app; threat cards list the mods behind a reply, and ``facts`` of the app and the round."""

    facts: AppFacts

    def card(self, task: Task, kind: Kind, seen: Sequence[Seen], accuracy: float | None, **facts: Any) -> ThreatCard:
        """The threat card."""
        app, pipeline = self.facts, task.plan.pipeline
        about: dict[str, Any] = {
            "mods": pipeline or "none known",
            "loss": app.loss if app.loss == CROSS_ENTROPY else f"{app.loss}; attacks assume {CROSS_ENTROPY}",
            "data": "the app's own, as its data gives them",
            "training": f"{app.training.recipe}; loss as reported or by default",
            "randomness": f"{self.randomness}: which images are probed; what the app and its mods draw in training is theirs",
            "learning_rate": OBSERVED,
            "messages": f"{app.probes + 1} of each client in an attacked round: the app's own and {app.probes} probes",
            "budget": app.spent or None,
        }
        if pipeline:
            # Mods act once on a message, whatever they are called.
            alike = kind is not PROBE or app.training.training.steps == 1  # as a probe
            about["defense_strength"] = Strength.UPDATE if alike else Strength.ONE_STEP
            about["in_training"] = None if alike else "once on all local steps of a round"
        if kind is PROBE:
            about["caveats"] = [NOT_IN_PROBE, *filter(None, [app.spent])]
        else:
            about["caveats"] = list(filter(None, [app.training.recipe, app.training.of_data]))
        return super().card(task, kind, seen, accuracy, **facts).but(**about)


NO_REPLY = "no attacked round had a reply"


class AuditError(RuntimeError):
    """An audit that cannot begin, or that attacked nothing.

    Attributes:
        reasons: Each a sentence.
        result: Where rounds ran, what the wrapped strategy's ``start`` returned; else None.
    """

    def __init__(self, reasons: Sequence[str], what: str = "the audit cannot begin") -> None:
        listed = "".join(f"\n- {reason}" for reason in reasons)
        super().__init__(f"{what}:{listed}\nWith go_on=True the run goes on all the same.")
        self.reasons = tuple(reasons)
        self.result: Result | None = None


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

    Attributes:
        claims: What the app says about its differential privacy.
        accuracy: What the app's own evaluations report.
        budgets: Of the mods of the first node that has replied.
    """

    def __init__(self, open_results: OpenResults, plan: AppPlan) -> None:
        self.claims, self.accuracy = PrivacyClaims(), ReportedAccuracy()
        self.budgets: Sequence[ModBudget] = ()
        self._open, self._plan = open_results, plan
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
        untried = self._results.untried() if self._results is not None else []
        return list(self._failures) or untried or [NO_REPLY]

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

    def observe(self, server_round: int, replies: Sequence[Message]) -> None:
        """Read the claims in a round's replies; they are on disk from then on, should the run end early."""
        self.claims.observe(server_round, replies)
        if self._results is not None:
            self._claim(self._results)
            self._results.flush()

    def finish(self) -> None:
        """Add the claims of all rounds and the app's own accuracy, and have the report written."""
        if not self.attacked and self.failures == [NO_REPLY]:
            self.note(self._plan.rounds, NO_REPLY)
        results = self.begin(self._plan)
        try:
            self._claim(results)
            if accuracy := self.accuracy.found():
                of = self._plan.at(accuracy.round)
                results.row(of, metric=REPORTED, value=accuracy.value, reported=asdict(accuracy))
        finally:
            results.finish()

    def held(self, gate: Gate) -> Sequence[str]:
        """What a gate says of the results and of the app's claims so far."""
        return gate(self._results, self._claims())

    def _claim(self, results: Results) -> None:
        results.claim(self._plan.at(self._plan.rounds), self._claims())

    def _claims(self) -> list[Claim]:
        return self.claims.found(self._plan.pipeline, self.budgets)

    def _write(self, results: Results, server_round: int, text: str) -> None:
        results.row(self._plan.at(server_round), metric="audit", value=None, status="failed", message=text)
