"""Names under which apps report numbers of their training: those of Flower's templates first."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

EXAMPLES = ("num-examples", "num_examples")
RATES = ("lr", "learning-rate", "learning_rate")
BATCHES = ("batch-size", "batch_size")
EPOCHS = ("local-epochs", "local_epochs", "epochs")
STEPS = ("local-steps", "local_steps")
MOMENTA = ("momentum",)
DECAYS = ("weight-decay", "weight_decay")


def first_number(records: Iterable[Mapping[str, Any]], names: Sequence[str]) -> int | float | None:
    """The number under one of these names in the first record that holds one; None without any."""
    found = (record[name] for record in records for name in names if name in record)
    return next((one for one in found if isinstance(one, int | float) and not isinstance(one, bool)), None)
