"""Membership inference from several rounds: FedMIA, with other clients' updates in place of shadow models, and its baselines."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
from torch import Tensor

from attacks.base import Attack
from attacks.local_model import local_model, shared_tensors
from attacks.membership.federation.round_signals import COSINE, ObservedRound, RoundsTest, record_gradients
from attacks.observations import AttackError, ClientUpdate, NotApplicableError, TrainingUpdate, UpdateHistory
from defenses.checks import algorithm, choice_field, starts_field


@algorithm
class FederationAttack(
    Attack[UpdateHistory, RoundsTest],
    observes=TrainingUpdate,
    observes_history=True,
    guesses="membership",
    reads_steps=True,
):
    """Base of attacks that judge a record by a signal of each round's updates, and take the mean over the rounds.

    The client applies the test to records that the server never sees. The test has as many values as a model, times its rounds,
    times one more than its clients.

    Attributes:
        most_rounds: Most rounds that the test holds, the last and others that are evenly spread before it. The setting
            ``attack-rounds`` names the rounds that the server keeps.
    """

    # Fields of some subclasses.
    signal = COSINE
    most_others = 0

    most_rounds: int = starts_field(10)

    def failed(self, observation: UpdateHistory, reason: str) -> RoundsTest:
        """The failed test, which scores no record."""
        return RoundsTest(None, failure=reason)

    def attack_one(self, observation: UpdateHistory, generator: torch.Generator) -> RoundsTest:
        """Make the test of a client; deterministic.

        Raises:
            AttackError: When fewer rounds than ``least_rounds`` are usable, or the model has no gradients of single records.
        """
        found, problem = list[ObservedRound](), "the client sent no update"
        others = observation.others or ((),) * len(observation.updates)
        for update, beside in zip(observation.updates, others, strict=True):
            try:
                found.append(_observed(update, beside, self.most_others))
            except AttackError as error:
                problem = str(error)
        if len(found) < self.profile.least_rounds:
            few = f"{len(found)} of {self.profile.least_rounds} rounds observed; name more in attack-rounds"
            raise NotApplicableError(few) if found else AttackError(problem)
        model = copy.deepcopy(observation.updates[-1].model).eval().requires_grad_(False)
        if self.signal == COSINE:
            # Refuses a model without gradients of single records here, at the server, not at each client.
            image: Tensor = next(model.parameters()).new_zeros(1, *observation.updates[-1].input_shape)
            next(record_gradients(model, image, torch.zeros(1, dtype=torch.int64, device=image.device)))
        rounds = tuple(found[at] for at in spread(len(found), self.most_rounds))
        notes = {"rounds-used": float(len(rounds))}
        if self.most_others:
            notes["other-clients"] = sum(one.num_clients - 1 for one in rounds) / len(rounds)
        return RoundsTest(model, diagnostics=notes, rounds=rounds, signal=self.signal, compared=self.most_others > 0)


def spread(count: int, most: int) -> list[int]:
    """At most ``most`` of the positions 0 to count - 1, the last among them, evenly spread."""
    if count <= most:
        return list(range(count))
    return [count - 1 - (most - 1 - at) * count // most for at in range(most)]


def _observed(update: ClientUpdate, others: Sequence[ClientUpdate], most_others: int) -> ObservedRound:
    """One round, with the first ``most_others`` other clients whose update fits the model. The attacked client's must fit."""
    local_model(update)  # fits
    usable = [update]
    for other in others:
        if len(usable) > most_others:
            break
        try:
            local_model(other)
        except AttackError:
            continue
        usable.append(other)
    if most_others and len(usable) < 2:
        raise NotApplicableError(
            "no other client's update of the round is there to compare with; allowed: two clients or more"
        )
    weights = {name: value.clone() for name, value in shared_tensors(update.model).items()}
    # A buffer that only some clients sent did not move at the others, as far as the server knows.
    names = [name for name in weights if any(name in one.update for one in usable)]
    like = {name: torch.zeros_like(weights[name]) for name in names}
    stacked = {
        name: torch.stack([one.update.get(name, like[name]).detach().to(like[name]) for one in usable])
        for name in names
    }
    return ObservedRound(weights, stacked)


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
