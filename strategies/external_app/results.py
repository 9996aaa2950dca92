"""The results of an external app's audit, and an auditor whose threat cards describe the app."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from clients.external_app.client import CROSS_ENTROPY
from clients.external_app.mods import Budget
from clients.external_app.plan import AppPlan
from clients.task.task import Task
from strategies.audit.auditor import Auditor
from strategies.audit.jobs import Recorder
from strategies.audit.kinds import Kind, Seen
from strategies.audit.threat_card import Strength, ThreatCard
from strategies.external_app.claim import Claim
from strategies.external_app.orders import AS_ASSUMED, NOT_IN_PROBE, UNCHECKED, recipe
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

    def claim(self, task: Task, claims: Sequence[Claim]) -> None:
        """Add the app's own privacy claim: a row of ``task``, and an entry of every threat card.

        A later call replaces an earlier one.
        """

    def finish(self) -> None:
        """Judges the rows and writes the report."""


OpenResults = Callable[[AppPlan], Results]
"""Called once a node has reported what it has."""


@dataclass(frozen=True)
class AppFacts:
    """Facts about an app for threat cards, besides its plan.

    Attributes:
        loss: The app's name of its loss.
        budgets: Privacy budget per message of each of the app's mods for local differential privacy.
        probes: Number of one-step probes of each client in an attacked round.
        learning_rate: Source of the round's learning rate.
        one_step: Each client takes a single step per round, as in a probe.
        difference: Largest reported difference between a client's reply and such a step; None without a report.
    """

    loss: str = CROSS_ENTROPY
    budgets: Sequence[Budget] = ()
    probes: int = 0
    learning_rate: str = "known"
    one_step: bool = False
    difference: float | None = None

    @property
    def messages(self) -> str:
        """Messages with a client's weights in an attacked round."""
        return f"{self.probes + 1} of each client in an attacked round: the app's own and {self.probes} probes"

    @property
    def checked(self) -> str:
        """Agreement of the clients' replies with the assumed step."""
        if self.difference is None:
            return "unchecked"
        if self.difference <= AS_ASSUMED:
            return "as the clients report, their replies are such a step on the images of data"
        return f"as the clients report, their replies are not: they lie up to {100 * self.difference:.3g} % of such a step away"

    @property
    def spent(self) -> str:
        """The budget of an attacked round by basic composition (Dwork and Roth 2014, theorem 3.16); "" where no mod has one."""
        if not self.budgets:
            return ""
        if broken := [one for one in self.budgets if not one.holds]:
            return "; ".join(map(_unkept, broken))
        epsilon, delta = sum(one.epsilon for one in self.budgets), sum(one.delta for one in self.budgets)
        count = self.probes + 1
        return (
            f"LocalDpMod is set to ({epsilon:g}, {delta:g}) a message: by basic composition {count} x that, ({count * epsilon:g}, "
            f"{count * delta:g}), for each client and attacked round, {self.probes} x that for the probes alone"
            f"{CLASSICAL if max(one.epsilon for one in self.budgets) > 1 else ''}{UNIT}"
        )


def _unkept(budget: Budget) -> str:
    return (
        f"LocalDpMod is set to ({budget.epsilon:g}, {budget.delta:g}) a message, which its noise does not give: it is for a "
        f"sensitivity of {budget.sensitivity:g}, and two updates of norm {budget.clipping_norm:g} lie up to {budget.farthest:g} "
        "apart; there is no budget"
    )


class AppAuditor(Auditor):
    """The auditor of an external app; threat cards list the mods behind a reply, and ``facts`` of the app and the round."""

    facts = AppFacts()

    def card(self, task: Task, kind: Kind, seen: Sequence[Seen], accuracy: float | None, **facts: Any) -> ThreatCard:
        """The threat card."""
        app, pipeline = self.facts, task.plan.pipeline
        about: dict[str, Any] = {
            "mods": pipeline or "none known",
            "loss": app.loss if app.loss == CROSS_ENTROPY else f"{app.loss}; attacks assume {CROSS_ENTROPY}",
            "data": "the app's own, as its data gives them",
            "training": f"{recipe(task.plan)}; loss as reported or by default",
            "randomness": f"{self.randomness}: which images are probed; what the app and its mods draw in training is theirs",
            "learning_rate": app.learning_rate,
            "messages": app.messages,
            "budget": app.spent or None,
        }
        if pipeline:
            # Mods act once on a message, whatever they are called.
            alike = kind is not PROBE or app.one_step
            about["defense_strength"] = Strength.UPDATE if alike else Strength.ONE_STEP
            about["in_training"] = None if alike else "once on all local steps of a round"
        if kind is PROBE:
            about["caveats"] = [NOT_IN_PROBE, *filter(None, [app.spent])]
        else:
            about["caveats"] = [f"{recipe(task.plan)}; {app.checked}", *([UNCHECKED] if app.difference is None else [])]
        return super().card(task, kind, seen, accuracy, **facts).but(**about)
