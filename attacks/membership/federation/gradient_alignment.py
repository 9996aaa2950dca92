"""Membership inference by the alignment of a record's gradient with the client's update."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from attacks.membership.federation.base import FederationAttack
from attacks.membership.federation.round_signals import COSINE, RoundsTest
from attacks.observations import UpdateHistory


@dataclass(frozen=True, repr=False)
class GradientAlignment(FederationAttack):
    """Score a record by the cosine of its gradient at the global model and the client's update, on average over the rounds.

    The update sums gradients of members. Gradients of different records of a large model are nearly orthogonal, so that a member's
    gradient has a larger product with the update than a non-member's.

    Attributes:
        most_rounds: Most rounds that the test holds, the last and others that are evenly spread before it.
    """

    source = "Zhu et al. 2025 (baseline Avg-Cosine), after Li, Li, Ribeiro 2023, who compare squared lengths"
    threat = "global models and the client's updates, of one round or more; true classes of the records in question"

    def attack_one(self, observation: UpdateHistory, generator: torch.Generator) -> RoundsTest:
        """Make the test from the client's updates; deterministic."""
        return self.made(observation, COSINE)
