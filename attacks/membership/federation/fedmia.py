"""Membership inference from several rounds: FedMIA, with other clients' updates in place of shadow models, and its baselines."""

from __future__ import annotations

from attacks.membership.federation.base import FederationAttack
from defenses.checks import algorithm, choice_field, starts_field


@algorithm
class FedMIA(FederationAttack, least_clients=2, shares_updates=True):
    """Score a record by how far the client's signal lies above those of the other clients' updates, on average over the rounds.

    The other clients did not train on the record. Their signals in a round are those of non-members: normal, with their mean and
    variance. The score of a round is the probability of a smaller signal. The attack needs no auxiliary data and no training.

    A record that another client holds too raises that client's signal and hides the membership. As in the authors' code, other
    clients' cosines that lie three standard deviations or more above their mean are left out; losses never are. Of fewer than 11
    signals none lies so far above.

    Attributes:
        signal: "cosine": between the record's gradient at the global model and the client's update (FedMIA-II). "loss": minus the
            loss under the client's model (FedMIA-I).
        most_others: Most other clients of a round that the test holds.
    """

    source = "Zhu et al. 2025, FedMIA-I (loss) and FedMIA-II (cosine)"
    threat = "global models and updates of all clients over the rounds; true classes of the records in question"

    signal: str = choice_field("cosine", ("cosine", "loss"))
    most_others: int = starts_field(16)


@algorithm
class GradientAlignment(FederationAttack):
    """Score a record by the cosine of its gradient at the global model and the client's update, on average over the rounds.

    The update sums gradients of members. Gradients of different records of a large model are nearly orthogonal, so that a member's
    gradient has a larger product with the update than a non-member's.
    """

    source = "Zhu et al. 2025 (baseline Avg-Cosine), after Li, Li, Ribeiro 2023, who compare squared lengths"
    threat = "global models and the client's updates, of one round or more; true classes of the records in question"


@algorithm
class LossTrajectory(FederationAttack, least_rounds=2):
    """Score a record by its losses under the models of several rounds, of which a member's fall and stay low.

    The server of a federation has the trajectory itself. The attack of Liu et al. 2022 has only the final model. It approximates
    the trajectory by distillation, and learns from shadow models how members' trajectories look. Here nothing is learned: the
    score is a mean over the rounds.

    The signal "drop" is not the calibration of Watson et al. 2022. Their reference models never saw the record. The global model,
    which is the reference here, holds what this client and others sent in earlier rounds. A member's drop is therefore small once
    the global model has learned the record.

    Attributes:
        signal: "drop": how much the client's training of the round lowers the loss, from the global model to the client's, so that
            records that are easy for every model gain nothing. "loss": minus the loss under the client's model ("Loss-Series").
    """

    source = (
        "Zhu et al. 2025 (baseline Loss-Series); drop: after the idea of Watson et al. 2022, section 3; trajectory: "
        "Liu et al. 2022"
    )
    threat = "global models and the client's updates over the rounds; true classes of the records in question"

    most_rounds: int = starts_field(10, 2)
    signal: str = choice_field("drop", ("drop", "loss"))
