"""The training settings of a round, from its messages and the settings of the app, and warnings of other learning rates."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from strategies.recording.files import BATCHES, EPOCHS, RATES, first_number

if TYPE_CHECKING:  # its module imports torch, before which `fedveil attack` checks its settings
    from clients.task.task import Plan

STEPS_FROM = f"{EPOCHS[0]} and {BATCHES[0]}"
"""What the number of local steps follows from."""
OF_ROUND, OF_SETTINGS = "known: the round's messages tell it", "as the app's settings tell, the same in every round"
OF_ARGUMENTS = "as given to the audit, the same in every round"
"""Where a learning rate comes from, as threat cards say."""


@dataclass(frozen=True)
class Orders:
    """Training settings of one client in one round; 0 means unknown. The rate is of SGD; its source says where it was found."""

    learning_rate: float
    rate_source: str
    local_epochs: int
    batch_size: int

    @property
    def knows_steps(self) -> bool:
        """Whether the number of local steps follows."""
        return self.local_epochs > 0 and self.batch_size > 0

    def steps(self, examples: int) -> int:
        """Local steps of a client with so many examples, the last batch of an epoch being smaller; 0 where unknown."""
        return self.local_epochs * -(-examples // self.batch_size) if self.knows_steps else 0


NOTHING_GIVEN = Orders(0.0, OF_ARGUMENTS, 0, 0)


def orders_in(
    records: Sequence[Mapping[str, Any]], settings: Mapping[str, Any], given: Orders = NOTHING_GIVEN
) -> Orders:
    """Read the training settings from a round's records; the app's settings fill gaps, and ``given`` settings replace both."""
    known = [*records, settings]
    found = OF_SETTINGS if first_number(records, RATES) is None else OF_ROUND
    return Orders(
        given.learning_rate or float(first_number(known, RATES) or 0.0),
        given.rate_source if given.learning_rate else found,
        given.local_epochs or int(first_number(known, EPOCHS) or 0),
        given.batch_size or int(first_number(known, BATCHES) or 0),
    )


Sent = Mapping[int, float | None]
"""Client -> its learning rate; None or 0 where it is unknown."""


def other_rates(server_round: int, verb: str, rates: Sent, used: float) -> str:
    """Warn where attacks use a learning rate that is not the clients' own; "" where no such client is known.

    Args:
        server_round: Round of the rates.
        verb: How the rates became known, such as "were sent" or "reported".
        rates: Learning rates of the round's clients.
        used: Learning rate of the attacks.

    Returns:
        Sentences for the log and for the page.
    """
    known = {client: rate for client, rate in rates.items() if rate is not None and 0 < rate < math.inf}
    other = {client: rate for client, rate in known.items() if not math.isclose(rate, used, rel_tol=1e-5)}
    if not other or used <= 0:
        return ""
    return (
        f"Learning rates differ in round {server_round}: attacks use {used:g} for every client, and {len(other)} of {len(rates)} "
        f"clients {verb} {listed(other.values())}. For these clients, attacks that use the learning rate have unreliable scores."
    )


def listed(rates: Iterable[float]) -> str:
    """Learning rates as text, each once, in increasing order; of many only the ends."""
    found = sorted(set(rates))
    if len(found) > 4:
        return f"{len(found)} rates from {found[0]:g} to {found[-1]:g}"
    return " or ".join(f"{rate:g}" for rate in found)


NOT_IN_PROBE = (
    "what the app's own train() does is not in a probe: clipping or noise inside it, another optimizer than SGD, frozen layers, "
    "BatchNorm or dropout in eval mode, augmentation"
)
UNCHECKED = "that its clients trained on the images of data is the app's word: their number alone is compared"
ASSUMED = "audited-app"
"""Metric of the row of each attacked round whose column ``assumed`` lists what could not be known."""

DIFFERENCE = "reply-difference"
"""Metric of the row of a client whose round is one step: how far its reply lies from that step, over the step's length."""
AS_ASSUMED = 0.01
"""Highest difference that rounding explains: of float32 weights, whose change is much smaller than they are."""


def sgd(settings: Any) -> str:
    """The optimizer that probes and attacks assume, of a plan or of the settings of ``fedveil attack``."""
    kind = " (Nesterov)" if settings.nesterov else ""
    return f"SGD with momentum {settings.momentum:g}{kind} and weight decay {settings.weight_decay:g}"


def recipe(plan: Plan) -> str:
    """The assumptions on training, for threat cards."""
    layers = "all layers learn but those that the model freezes"
    return f"assumed: {sgd(plan)}, its state new in each round; train mode, {layers}, no augmentation"


COUNTED_STEPS = "How many local steps there were: counted from the local epochs, the batch size and the examples."


def training_assumptions(settings: Any, *, unsent: int = 0) -> list[str]:
    """Unknown facts about the training of any app, live or recorded, each with the assumption in its place.

    ``settings`` are a plan or those of ``fedveil attack``; ``unsent`` frozen tensors are in no message.
    """
    found = [
        f"Which optimizer the clients ran, and that its state starts anew each round: {sgd(settings)} was assumed.",
        "Whether images were augmented, or the last, smaller batch of an epoch left out: neither was assumed.",
        f"Whether gradients were computed in {settings.probe_mode} mode, dropout included, and all layers learn but those that the "
        "model freezes: both assumed.",
    ]
    if unsent:
        found.append(
            f"Whether training starts from the {unsent} frozen tensors that no message holds, as the model builds them: assumed."
        )
    return found


def assumptions(plan: Plan, orders: Orders, loss: str, *, mods: str, unsent: int = 0) -> list[str]:
    """Unknown facts about the clients of a live app, each with the assumption in its place.

    ``mods`` are those known to act on replies; ``unsent`` as above.
    """
    found = [
        f"Whether the clients trained on the images of data, which guesses are scored against: {UNCHECKED.split(': ')[1]}.",
        f"What the app's own train() does to an update, such as clipping or noise inside it: nothing beside "
        f"{f'the mods ({mods})' if mods else 'what a step does'} was reckoned with, and no probe shows it.",
        *training_assumptions(plan, unsent=unsent),
        f"Whether the loss is {loss}, as answer_audits names it or by default.",
    ]
    if orders.rate_source != OF_ROUND:
        found.append(f"Whether the learning rate of this round was {orders.learning_rate:g}: {orders.rate_source}.")
    if orders.knows_steps:
        found.append(COUNTED_STEPS)
    return found
