"""What attacks on a sensitive attribute share: its value for the server's own examples, and how well held-out ones are read."""

from __future__ import annotations

from torch import Tensor

from attacks.base import Knowledge
from attacks.observations import AttackError


def sensitive_of(knowledge: Knowledge) -> Tensor:
    """The attribute of the auxiliary examples, (N,) on the CPU."""
    hidden = knowledge.sensitive
    if hidden is None:
        raise AttackError("the auxiliary data have no sensitive attribute")
    if bool((hidden == hidden[0]).all()):
        raise AttackError("all auxiliary examples have the same sensitive attribute")
    return hidden.cpu()


def judged(logits: Tensor, truth: Tensor, learned_from: Tensor) -> dict[str, float]:
    """Accuracy on what was held out, and that of answering with the most frequent value among the others."""
    return {
        "holdout_accuracy": float((logits.argmax(1) == truth).float().mean()),
        "holdout_majority": float((truth == learned_from.mode().values).float().mean()),
    }
