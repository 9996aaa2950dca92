"""Runs that end as if they were killed: at a reply, or when all training is done and no attack has been."""

from __future__ import annotations

import pytest
from flwr.app import Message

from simulations.experiment.experiment import Experiment
from simulations.server_app import run_experiment
from strategies.audit.pool import AttackPool
from tests.local_grid import LocalGrid, Tamper


class Killed(BaseException):
    """Stands for SIGKILL: nothing in the run may catch it and tidy up."""


def killed_at(message_type: str, count: int) -> Tamper:
    """A tamper function that ends the run at the ``count``-th reply of a type."""
    seen = 0

    def tamper(partition: int, request: Message, reply: Message) -> Message:
        nonlocal seen
        seen += request.metadata.message_type == message_type
        if seen == count:
            raise Killed
        return reply

    return tamper


def killed_with_open_attacks(settings: Experiment) -> None:
    """Runs until all training is done and no attack has been."""

    def finished(self: AttackPool, *, wait: bool = False) -> list[object]:
        if wait:
            raise Killed
        return []

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(AttackPool, "finished", finished)
        patch.setattr(AttackPool, "submit", lambda self, job: None)
        patch.setattr(AttackPool, "__len__", lambda self: 1)
        with pytest.raises(Killed):
            run_experiment(LocalGrid(settings.num_clients), settings)
