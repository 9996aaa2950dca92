"""Where the attacks of this process compute."""

from __future__ import annotations

from attacks.placement import Place
from clients.training.evaluation import device


def place() -> Place:
    """The GPU if this process may use one, else the processor."""
    return Place(device())
