"""The training settings of a round, from its messages and, where they lack them, from the app's settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from strategies.recording.usual_names import BATCHES, EPOCHS, RATES, first_number

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
        OF_ARGUMENTS if given.learning_rate else found,
        given.local_epochs or int(first_number(known, EPOCHS) or 0),
        given.batch_size or int(first_number(known, BATCHES) or 0),
    )
