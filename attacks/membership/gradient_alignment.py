"""Membership inference from several rounds: gradients of single records beside the updates of a client."""

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from attacks.base import Attack
from attacks.local_model import local_model, overwrite, shared_tensors, usable
from attacks.membership.loss_threshold import Membership
from attacks.observations import AttackError, ClientUpdate, NotApplicableError, TrainingUpdate, UpdateHistory
from defenses.checks import algorithm
from defenses.tensors import NamedTensors, Tensors, on_cpu

PART = "rounds"
"""First part of the names of a sent test's tensors; no name of another test begins so."""
MOST_ROUNDS = 10
"""Most rounds that a test holds: the last, and others that are evenly spread before it."""
MOST_VALUES = 2**20
"""Values of gradients of single records that are held at once: 4 MiB, which stay in a processor's cache."""


@dataclass(frozen=True)
class ObservedRound:
    """One round as the server saw it.

    Attributes:
        weights: ``shared_tensors`` of the global model that the server sent.
        update: The client's update (local - global) of each parameter.
    """

    weights: Tensors
    update: Tensors

    def cosines(self, model: nn.Module, images: Tensor, classes: Tensor) -> Tensor:
        """Cosine of each record's gradient at the global model and the client's descent, (N,) float64 on the CPU.

        It is 0 if either vector is 0. ``model`` is any of the architecture and stays as it is.

        Source: Zhu et al. 2025 ("Grad-Cosine" in the authors' code). The code takes gradients in train mode; here dropout is off
        and BatchNorm uses the statistics of the global model.
        """
        at_global = overwrite(copy.deepcopy(model), self.weights)
        direction = -torch.cat([self.update[name].flatten().float() for name, _ in at_global.named_parameters()])
        parts = []
        for gradients in record_gradients(at_global, images, classes):
            product = (direction[None].to(gradients) @ gradients.T)[0].double().cpu()
            lengths = direction.double().norm().cpu() * gradients.double().square().sum(1).cpu().sqrt()
            parts.append(torch.where(lengths > 0, -product / lengths, 0.0))
        return torch.cat(parts)


def record_gradients(model: nn.Module, images: Tensor, classes: Tensor) -> Iterator[Tensor]:
    """Gradients of the confidence in single records in a model's parameters, some records at a time.

    The gradient of the cross-entropy is grad l = -(1 - p) grad c, with c the logit-scaled confidence and p the probability of the
    true class. grad c keeps its direction where p rounds to 1.

    Yields:
        grad c, (n, P) float32.

    Raises:
        AttackError: When the model's operations have no gradients of single records (``torch.func.vmap``).
    """
    parameters = {name: value.detach() for name, value in model.named_parameters()}
    like = next(iter(parameters.values()))
    at_once = max(1, MOST_VALUES // sum(value.numel() for value in parameters.values()))

    def confidence(values: NamedTensors, image: Tensor, own: Tensor) -> Tensor:
        logits = functional_call(model, dict(values), (image[None],))[0]
        margin: Tensor = (logits * own).sum() - logits.masked_fill(own, -torch.inf).logsumexp(0)
        return margin

    each = vmap(grad(confidence), in_dims=(None, 0, 0))
    for at in range(0, len(images), at_once):
        piece = images[at : at + at_once].to(like)
        count = model(piece[:1]).shape[1]
        own = nn.functional.one_hot(classes[at : at + at_once].to(like.device), count).bool()
        try:
            gradients = each(parameters, piece, own)
        except RuntimeError as error:
            raise NotApplicableError(f"{type(model).__name__} has no gradients of single records: {error}") from error
        flat = torch.cat([gradients[name].flatten(1) for name in parameters], 1).float()
        yield flat.nan_to_num(nan=0.0, posinf=0.0, neginf=0.0)


@dataclass(frozen=True)
class RoundsTest(Membership):
    """A test that scores a record by the mean over rounds of ``ObservedRound.cosines``.

    Attributes:
        model: Any model of the architecture, in eval mode; None if the attack failed.
        rounds: The rounds, oldest first.
    """

    rounds: tuple[ObservedRound, ...] = ()

    @property
    def kind(self) -> str:
        """How it scores: "rounds"."""
        return PART

    def scores(self, images: Tensor, classes: Tensor) -> Tensor:
        """Membership score of each record, (N,) float64 on the CPU; see ``Membership.scores``."""
        if self.model is None or not len(images):
            return super().scores(images, classes)
        total = torch.zeros(len(images), dtype=torch.float64)
        for seen in self.rounds:
            total += seen.cosines(self.model, images, classes)
        return total / len(self.rounds)

    def to_tensors(self) -> Tensors:
        """The test as tensors, "rounds/R/weights/NAME" and "rounds/R/update/NAME"; empty if the attack failed."""
        tensors: Tensors = {}
        for at, seen in enumerate(self.rounds):
            tensors |= on_cpu(seen.weights, f"{PART}/{at}/weights/") | on_cpu(seen.update, f"{PART}/{at}/update/")
        return tensors

    @classmethod
    def from_tensors(cls, tensors: NamedTensors, model: nn.Module) -> Self:
        """Inverse of ``to_tensors``; see ``Membership.from_tensors``."""
        if not tensors:
            return cls(None, failure="the attack failed and sent no test")
        held = copy.deepcopy(model)
        parts: dict[str, dict[str, Tensors]] = {}
        for key, value in tensors.items():
            _, number, part, name = (*key.split("/", 3), "", "", "")[:4]
            if part not in ("weights", "update"):
                raise AttackError(f"{key!r} names no part; allowed: {PART}/R/weights/NAME and {PART}/R/update/NAME")
            parts.setdefault(number, {"weights": {}, "update": {}})[part][name] = value
        if set(parts) != {str(at) for at in range(len(parts))}:
            raise AttackError(f"the test names the rounds {sorted(parts)[:3]}; allowed: 0, 1, ... without a gap")
        rounds = tuple(_round(held, **parts[str(at)]) for at in range(len(parts)))
        return cls(held.eval().requires_grad_(False), rounds=rounds)


def _round(held: nn.Module, weights: Tensors, update: Tensors) -> ObservedRound:
    """The round with tensors of the types and on the device of ``held``, which names, shapes and values must fit."""
    like = shared_tensors(held)
    if wrong := (set(weights) ^ set(like)) | (set(update) ^ {name for name, _ in held.named_parameters()}):
        raise AttackError(f"missing or unknown names: {sorted(wrong)[:3]}")
    fitting = (
        {name: value.to(like[name]) for name, value in values.items() if overwrite(held, values)}
        for values in (update, weights)
    )
    update, weights = fitting
    return ObservedRound(weights, update)


@algorithm
class GradientAlignment(
    Attack[UpdateHistory, RoundsTest],
    observes=TrainingUpdate,
    observes_history=True,
    guesses="membership",
    reads_steps=True,
):
    """Score a record by the cosine of its gradient at the global model and the client's update, on average over the rounds.

    The update sums gradients of members. Gradients of different records of a large model are nearly orthogonal, so that a member's
    gradient has a larger product with the update than a non-member's.

    The client applies the test to records that the server never sees. The test has twice as many values as a model, times its
    rounds, of which it holds ``MOST_ROUNDS`` at most. The setting ``attack-rounds`` names the rounds that the server keeps.
    """

    source = "Zhu et al. 2025 (baseline Avg-Cosine), after Li, Li, Ribeiro 2023, who compare squared lengths"
    threat = "global models and the client's updates, of one round or more; true classes of the records in question"

    def failed(self, observation: UpdateHistory, reason: str) -> RoundsTest:
        """The failed test, which scores no record."""
        return RoundsTest(None, failure=reason)

    def attack_one(self, observation: UpdateHistory, generator: torch.Generator) -> RoundsTest:
        """Make the test of a client; deterministic.

        Raises:
            AttackError: When no round is usable, or the model has no gradients of single records.
        """
        seen = usable(observation.updates, _observed)
        model = copy.deepcopy(observation.updates[-1].model).eval().requires_grad_(False)
        # Refuses a model without gradients of single records here, at the server, not at each client.
        image: Tensor = next(model.parameters()).new_zeros(1, *observation.updates[-1].input_shape)
        next(record_gradients(model, image, torch.zeros(1, dtype=torch.int64, device=image.device)))
        rounds = tuple(seen[at] for at in spread(len(seen), MOST_ROUNDS))
        return RoundsTest(model, diagnostics={"rounds-used": float(len(rounds))}, rounds=rounds)


def spread(count: int, most: int) -> list[int]:
    """At most ``most`` of the positions 0 to count - 1, the last among them, evenly spread."""
    if count <= most:
        return list(range(count))
    return [count - 1 - (most - 1 - at) * count // most for at in range(most)]


def _observed(update: ClientUpdate) -> ObservedRound:
    local_model(update)  # fits
    weights = {name: value.clone() for name, value in shared_tensors(update.model).items()}
    sent = {name: value.detach().to(weights[name]) for name, value in update.update.items() if name in weights}
    # A frozen parameter that the client did not send did not move.
    named = {name: sent.get(name, torch.zeros_like(weights[name])) for name, _ in update.model.named_parameters()}
    return ObservedRound(weights, named)
