"""Membership inference with the other clients' updates in place of shadow models (FedMIA)."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from attacks.membership.federation.base import FederationAttack
from attacks.membership.federation.round_signals import RoundsTest
from attacks.observations import UpdateHistory
from defenses.checks import choice_field, starts_field


@dataclass(frozen=True, repr=False)
class FedMIA(FederationAttack):
    """Score a record by how far the client's signal lies above those of the other clients' updates, on average over the rounds.

    The other clients did not train on the record. Their signals in a round are those of non-members: normal, with their mean and
    variance. The score of a round is the probability of a smaller signal. The attack needs no auxiliary data and no training.

    A record that another client holds too raises that client's signal and hides the membership. As in the authors' code, other
    clients' cosines that lie three standard deviations or more above their mean are left out; losses never are. Of fewer than 11
    signals none lies so far above.

    Attributes:
        most_rounds: Most rounds that the test holds, the last and others that are evenly spread before it.
        signal: "cosine": between the record's gradient at the global model and the client's update (FedMIA-II). "loss": minus the
            loss under the client's model (FedMIA-I).
        most_others: Most other clients of a round that the test holds.
    """

    source = "Zhu et al. 2025, FedMIA-I (loss) and FedMIA-II (cosine)"
    threat = "global models and updates of all clients over the rounds; true classes of the records in question"
    shares_updates = True
    least_clients = 2

    signal: str = choice_field("cosine", ("cosine", "loss"))
    most_others: int = starts_field(16)

    def attack_one(self, observation: UpdateHistory, generator: torch.Generator) -> RoundsTest:
        """Make the test from all clients' updates; deterministic."""
        return self.made(observation, self.signal, most_others=self.most_others)
