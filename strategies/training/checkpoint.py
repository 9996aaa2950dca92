"""State of one pipeline's training: a server passes it to the run's folder, and resumes from it."""

from dataclasses import dataclass, field

from defenses.tensors import Tensors


@dataclass(frozen=True)
class Checkpoint:
    """State of one pipeline's training.

    Attributes:
        round: The last complete round; 0 is the evaluation of the initial model, one after the last round the attacks on the
            final one.
        weights: The global model after it.
        ledgers: Partition -> the training defences' state.
        accuracy: Of that model on clean test images.
        fixed: What is the same in every checkpoint of the pipeline; large, such as what clients uploaded before the first round.
        sums: What the server adds up over rounds besides, such as scores of canaries.
    """

    round: int
    weights: Tensors
    ledgers: dict[int, str]
    accuracy: float | None
    fixed: Tensors = field(default_factory=dict)
    sums: Tensors = field(default_factory=dict)
