"""Base of attacks on membership that use several rounds of a client."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
from torch import Tensor

from attacks.base import Attack
from attacks.local_model import local_model, shared_tensors
from attacks.membership.federation.round_signals import COSINE, ObservedRound, RoundsTest, record_gradients
from attacks.observations import AttackError, ClientUpdate, TrainingUpdate, UpdateHistory
from defenses.checks import algorithm, starts_field


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
            few = f"does not apply: {len(found)} of {self.profile.least_rounds} rounds observed; name more in attack-rounds"
            raise AttackError(few if found else problem)
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
        raise AttackError(
            "does not apply: no other client's update of the round is there to compare with; allowed: two clients or more"
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
