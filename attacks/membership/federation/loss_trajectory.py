"""Membership inference from a record's losses over the rounds."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from attacks.membership.federation.base import FederationAttack
from attacks.membership.federation.round_signals import RoundsTest
from attacks.observations import UpdateHistory
from defenses.checks import choice_field, starts_field


@dataclass(frozen=True, repr=False)
class LossTrajectory(FederationAttack):
    """Score a record by its losses under the models of several rounds, of which a member's fall and stay low.

    The server of a federation has the trajectory itself. The attack of Liu et al. 2022 has only the final model. It approximates
    the trajectory by distillation, and learns from shadow models how members' trajectories look. Here nothing is learned: the
    score is a mean over the rounds.

    The signal "drop" is not the calibration of Watson et al. 2022. Their reference models never saw the record. The global model,
    which is the reference here, holds what this client and others sent in earlier rounds. A member's drop is therefore small once
    the global model has learned the record.

    Attributes:
        most_rounds: Most rounds that the test holds, the last and others that are evenly spread before it.
        signal: "drop": how much the client's training of the round lowers the loss, from the global model to the client's, so that
            records that are easy for every model gain nothing. "loss": minus the loss under the client's model ("Loss-Series").
    """

    source = (
        "Zhu et al. 2025 (baseline Loss-Series); drop: after the idea of Watson et al. 2022, section 3; trajectory: "
        "Liu et al. 2022"
    )
    threat = "global models and the client's updates over the rounds; true classes of the records in question"

    least_rounds = 2

    most_rounds: int = starts_field(10, 2)
    signal: str = choice_field("drop", ("drop", "loss"))

    def attack_one(self, observation: UpdateHistory, generator: torch.Generator) -> RoundsTest:
        """Make the test from the client's updates; deterministic. One round is no trajectory."""
        return self.made(observation, self.signal)
