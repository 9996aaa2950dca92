"""Under which names apps tell numbers of their training: those of Flower's templates first."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

EXAMPLES = ("num-examples", "num_examples")
RATES = ("lr", "learning-rate", "learning_rate")
BATCHES = ("batch-size", "batch_size")
EPOCHS = ("local-epochs", "local_epochs", "epochs")


def first_number(records: Iterable[Mapping[str, Any]], names: Sequence[str]) -> int | float | None:
    """What the first record that has a number under one of these names says; None where none has."""
    found = (record[name] for record in records for name in names if name in record)
    return next((one for one in found if isinstance(one, int | float) and not isinstance(one, bool)), None)


def local_steps(epochs: int, examples: int, batch_size: int) -> int:
    """Steps of so many passes over examples, the last batch of a pass being smaller where they do not divide."""
    return epochs * -(-examples // batch_size)
