"""Where the training of one pipeline stands, as every server hands it to the run's folder and takes it up again."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor


@dataclass(frozen=True)
class Checkpoint:
    """Where a pipeline stands.

    Attributes:
        round: The last complete round; 0 is the evaluation of the initial model, one after the last round the attacks on the
            final one.
        weights: The global model after it.
        ledgers: Partition -> the training defences' state.
        accuracy: Of that model on clean test images.
        fixed: What is the same in every checkpoint of the pipeline; large, such as what clients uploaded before the first round.
    """

    round: int
    weights: dict[str, Tensor]
    ledgers: dict[int, str]
    accuracy: float | None
    fixed: dict[str, Tensor] = field(default_factory=dict)
