"""What an audit of an app needs of whoever keeps its results, and an auditor that says what protects the replies."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from clients.external_app.client import CROSS_ENTROPY
from clients.external_app.mods import Budget
from clients.external_app.plan import AppPlan
from clients.task.task import Task
from strategies.audit.auditor import Auditor
from strategies.audit.kinds import Kind, Seen
from strategies.audit.recorder import Recorder
from strategies.audit.threat_card import Strength, ThreatCard
from strategies.external_app.assumptions import AS_ASSUMED, NOT_IN_PROBE, UNCHECKED, recipe
from strategies.federated.observations import PROBE

CLASSICAL = "; the mod's formula for its noise holds for an epsilon of at most 1 only (Dwork and Roth 2014, appendix A)"

UNIT = (
    "; neighbours: a client's whole data set replaced by any other; it covers weights alone, not num-examples and metrics, which "
    "the mod leaves as they are"
)


class Results(Recorder, Protocol):
    """Keeps rows and pictures, and makes a report of them."""

    def flush(self) -> None:
        """Writes what there is."""

    def finish(self) -> None:
        """Judges the rows and writes the report."""


OpenResults = Callable[[AppPlan], Results]
"""Called once it is known what the nodes have."""


@dataclass(frozen=True)
class Told:
    """What threat cards say of an app beyond its own plan.

    Attributes:
        loss: What the app calls its loss.
        budgets: What each of its mods for local differential privacy is set to spend on a message.
        probes: One-step probes that are asked of each client in an attacked round.
        learning_rate: Where that of the round comes from.
        one_step: A round of every client is a single step, as a probe is.
        difference: The largest of those by which clients told that their replies differ from such a step; None where nobody did.
    """

    loss: str = CROSS_ENTROPY
    budgets: Sequence[Budget] = ()
    probes: int = 0
    learning_rate: str = "known"
    one_step: bool = False
    difference: float | None = None

    @property
    def messages(self) -> str:
        """How many messages with weights a client sends in an attacked round."""
        return f"{self.probes + 1} of each client in an attacked round: the app's own and {self.probes} probes"

    @property
    def checked(self) -> str:
        """What clients told of how far their replies are what is assumed."""
        if self.difference is None:
            return "nobody could check it"
        if self.difference <= AS_ASSUMED:
            return "by the clients' own word their replies are such a step on the images of data"
        return f"by the clients' own word their replies are not: they lie up to {100 * self.difference:.3g} % of such a step away"

    @property
    def spent(self) -> str:
        """The budget of an attacked round by basic composition (Dwork and Roth 2014, theorem 3.16); "" where no mod tells one.

        Where the noise of a mod is less than its own numbers ask for there is nothing to add up.
        """
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
        "apart; no budget is told"
    )


class AppAuditor(Auditor):
    """As for fedveil's own clients; threat cards say which mods a reply passed.

    Attributes:
        told: What cards say of the app, and of the round.
    """

    told = Told()

    def card(self, task: Task, kind: Kind, seen: Sequence[Seen], accuracy: float | None, **facts: Any) -> ThreatCard:
        """The threat card."""
        told, pipeline = self.told, task.plan.pipeline
        about: dict[str, Any] = {
            "mods": pipeline or "none known",
            "loss": told.loss if told.loss == CROSS_ENTROPY else f"{told.loss}; attacks assume {CROSS_ENTROPY}",
            "data": "the app's own, as its data gives them",
            "training": f"{recipe(task.plan)}; loss as told or by default",
            "randomness": f"{self.randomness}: which images are probed; what the app and its mods draw in training is theirs",
            "learning_rate": told.learning_rate,
            "messages": told.messages,
            "budget": told.spent or None,
        }
        if pipeline:
            # Mods act once on a message, whatever they are called.
            alike = kind is not PROBE or told.one_step
            about["defense_strength"] = Strength.UPDATE if alike else Strength.ONE_STEP
            about["in_training"] = None if alike else "once on all local steps of a round"
        if kind is PROBE:
            about["caveats"] = [NOT_IN_PROBE, *filter(None, [told.spent])]
        else:
            about["caveats"] = [
                f"{recipe(task.plan)}; {told.checked}",
                *([UNCHECKED] if told.difference is None else []),
            ]
        return super().card(task, kind, seen, accuracy, **facts).but(**about)
