"""Where the attacks of this process compute."""

from __future__ import annotations

from attacks.placement import Placement
from clients.training.evaluation import device


def place() -> Placement:
    """The GPU if this process may use one, else the processor."""
    return Placement(device())
