"""The training settings behind recorded replies, from messages and the settings of the app, and what must be assumed of others."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from strategies.recording.files import BATCHES, EPOCHS, RATES, first_number

OF_ROUND, OF_SETTINGS = "known: the round's messages tell it", "as the app's settings tell, the same in every round"
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


def orders_in(records: Sequence[Mapping[str, Any]], settings: Mapping[str, Any], given: Orders) -> Orders:
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


def sgd(settings: Any) -> str:
    """The optimizer that attacks assume, of the settings of ``fedveil attack``."""
    kind = " (Nesterov)" if settings.nesterov else ""
    return f"SGD with momentum {settings.momentum:g}{kind} and weight decay {settings.weight_decay:g}"


COUNTED_STEPS = "How many local steps there were: counted from the local epochs, the batch size and the examples."


def training_assumptions(settings: Any, *, unsent: int = 0) -> list[str]:
    """Unknown facts about the training of a recorded app, each with the assumption in its place.

    ``settings`` are those of ``fedveil attack``; ``unsent`` frozen tensors are in no message.
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
