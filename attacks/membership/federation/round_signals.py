"""A membership test made of several rounds of a federation: the client applies it to records that the server never sees."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from attacks.local_model import overwrite, shared_tensors
from attacks.membership.loss_threshold import Membership, loss_of, predict
from attacks.observations import AttackError, NotApplicableError
from defenses.tensors import NamedTensors, Tensors

LOSSES = ("loss", "drop")
"""Signals from the losses of a record."""
COSINE = "cosine"
"""The signal from the gradient of a record."""
SIGNALS = (*LOSSES, COSINE)
MOST_VALUES = 2**20
"""Values of gradients of single records that are held at once: 4 MiB, which stay in a processor's cache."""


PART = "rounds"
"""First part of the names of a sent test's tensors; no name of another test begins so."""
LEAST_VARIANCE = 1e-8
"""Added to the variance of the other clients' signals, as in the authors' code."""
OUTLYING = 3
"""Standard deviations above the mean of the other clients' signals from which one of them is an outlier, as in that code."""


@dataclass(frozen=True)
class ObservedRound:
    """One round as the server saw it.

    Attributes:
        weights: ``shared_tensors`` of the global model that the server sent.
        updates: Name -> (K, ...) updates (local - global) of K clients, the attacked client's first; all parameters, and the
            buffers that the clients sent.
    """

    weights: Tensors
    updates: Tensors

    @property
    def num_clients(self) -> int:
        """K."""
        return len(next(iter(self.updates.values())))

    def local_weights(self) -> Iterator[Tensors]:
        """The weights of each client after its local training, the attacked client's first."""
        for at in range(self.num_clients):
            moved = {name: self.weights[name] + update[at] for name, update in self.updates.items()}
            # Noise can push a variance below zero; the server's own average clamps it as well.
            clamped = {name: value.clamp(min=0) for name, value in moved.items() if name.endswith("running_var")}
            yield self.weights | moved | clamped

    def directions(self, names: list[str]) -> Tensor:
        """Descent (global - local) of each client in the named tensors, flattened: (K, P) float32."""
        return -torch.cat([self.updates[name].flatten(1).float() for name in names], 1)


def signals(seen: ObservedRound, kind: str, model: nn.Module, images: Tensor, classes: Tensor) -> Tensor:
    """A signal of each client's update for each record, (K, N) float64 on the CPU; finite.

    With l(w) the cross-entropy of the record at weights w, w_0 the global model, w_i the model of client i, d_i = w_0 - w_i, and
    g = grad l(w_0), models in eval mode:

        loss = -l(w_i);  drop = l(w_0) - l(w_i)
        cosine = g . d_i / (|g| |d_i|), 0 if either is 0

    Args:
        seen: The round.
        kind: One of ``SIGNALS``.
        model: Any model of the architecture; its weights are not used and not changed.
        images: Normalised images (N, C, H, W).
        classes: Their classes (N,).

    Source: cosine: Zhu et al. 2025 (FedMIA-II, "Grad-Cosine" in the authors' code). The code takes gradients in train mode; here
    dropout is off and BatchNorm uses the statistics of the global model.
    """
    if kind in LOSSES:
        held, classes = copy.deepcopy(model), classes.cpu()
        losses = torch.stack(
            [loss_of(predict(overwrite(held, weights), images), classes) for weights in seen.local_weights()]
        )
        if kind == "loss":
            return -losses
        return loss_of(predict(overwrite(held, seen.weights), images), classes) - losses
    at_global = overwrite(copy.deepcopy(model), seen.weights)
    names = [name for name, _ in at_global.named_parameters()]
    directions = seen.directions(names)
    parts = []
    for gradients in record_gradients(at_global, images, classes):
        product = (directions.to(gradients) @ gradients.T).double().cpu()
        square = gradients.double().square().sum(1).cpu()
        lengths = directions.double().norm(dim=1).cpu()[:, None] * square.sqrt()
        parts.append(torch.where(lengths > 0, -product / lengths, 0.0))
    return torch.cat(parts, 1)


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
        found: Tensor = (logits * own).sum() - logits.masked_fill(own, -torch.inf).logsumexp(0)
        return found

    each = vmap(grad(confidence), in_dims=(None, 0, 0))
    for at in range(0, len(images), at_once):
        piece = images[at : at + at_once].to(like)
        count = model(piece[:1]).shape[1]
        own = nn.functional.one_hot(classes[at : at + at_once].to(like.device), count).bool()
        try:
            found = each(parameters, piece, own)
        except RuntimeError as error:
            raise NotApplicableError(f"{type(model).__name__} has no gradients of single records: {error}") from error
        flat = torch.cat([found[name].flatten(1) for name in parameters], 1).float()
        yield flat.nan_to_num(nan=0.0, posinf=0.0, neginf=0.0)


FEWEST_WITH_OUTLIERS = OUTLYING**2 + 2
"""Signals: of fewer none lies further from their mean than ``OUTLYING`` of their standard deviations."""


@dataclass(frozen=True)
class RoundsTest(Membership):
    """A test that judges a record by a signal of each round's updates, and takes the mean over the rounds.

    Attributes:
        model: Any model of the architecture, in eval mode; None if the attack failed.
        rounds: The rounds, oldest first.
        signal: One of ``SIGNALS``.
        compared: The score of a round is the tail probability under the other clients' signals (``tail``), not the signal itself.
            Outliers among the other clients' cosines of a record are left out (``typical``).
    """

    rounds: tuple[ObservedRound, ...] = ()
    signal: str = "loss"
    compared: bool = False

    @property
    def kind(self) -> str:
        """How it scores: "rounds" with its signal, and "compared" where other clients' signals are the reference."""
        return f"rounds {self.signal}{' compared' if self.compared else ''}"

    def scores(self, images: Tensor, classes: Tensor) -> Tensor:
        """Membership score of each record, (N,) float64 on the CPU; see ``Membership.scores``."""
        if self.model is None or not len(images):
            return super().scores(images, classes)
        total = torch.zeros(len(images), dtype=torch.float64)
        for one in self.rounds:
            found = signals(one, self.signal, self.model, images, classes)
            total += tail(found, drops_outliers=self.signal == COSINE) if self.compared else found[0]
        return total / len(self.rounds)

    def to_tensors(self) -> Tensors:
        """The test as tensors; empty if the attack failed.

        "rounds/settings" holds signal and compared. "rounds/R/weights/NAME" and "rounds/R/updates/NAME" follow.
        """
        if self.model is None:
            return {}
        settings = [SIGNALS.index(self.signal), int(self.compared)]
        tensors = {f"{PART}/settings": torch.tensor(settings)}
        for at, one in enumerate(self.rounds):
            for kind, values in (("weights", one.weights), ("updates", one.updates)):
                tensors |= {f"{PART}/{at}/{kind}/{name}": value.detach().cpu() for name, value in values.items()}
        return tensors

    @classmethod
    def from_tensors(cls, tensors: NamedTensors, model: nn.Module) -> Self:
        """Inverse of ``to_tensors``, for a model of the same architecture, which is copied.

        Raises:
            AttackError: When names, shapes or values do not fit.
        """
        if not tensors:
            return cls(None, failure="the attack failed and sent no test")
        signal, compared = _settings(tensors)
        held = copy.deepcopy(model)
        numbers = {key.split("/")[1] for key in tensors} - {"settings"}
        if not numbers or numbers != {str(at) for at in range(len(numbers))}:
            raise AttackError(f"the test names the rounds {sorted(numbers)[:3]}; allowed: 0, 1, ... without a gap")
        rounds = tuple(_round(tensors, f"{PART}/{at}/", held) for at in range(len(numbers)))
        if compared and min(one.num_clients for one in rounds) < 2:
            raise AttackError("a round of the test holds no other client's update")
        return cls(held.eval().requires_grad_(False), rounds=rounds, signal=signal, compared=compared)


def tail(found: Tensor, *, drops_outliers: bool = False) -> Tensor:
    """-Pr(S >= s): s (N,) the attacked client's signal, S normal with mean and variance of the other clients' signals.

    Cumulative probabilities, which the authors average, are this plus 1; they would round to 1 for many records.

    Args:
        found: (K, N) signals, the attacked client's first, K at least 2.
        drops_outliers: Mean and variance are those of ``typical`` signals.

    Source: Zhu et al. 2025, FedMIA; ``scipy.stats.norm.cdf`` with the population variance + 1e-8 in the authors' code.
    """
    own, others = found[0], found[1:]
    kept = typical(others) if drops_outliers else torch.ones_like(others, dtype=torch.bool)
    mean = (others * kept).sum(0) / kept.sum(0)
    variance = ((others - mean).square() * kept).sum(0) / kept.sum(0)
    # torch.special.ndtr is 0 beyond 8.3 standard deviations; erfc is exact up to 38.
    share: Tensor = torch.special.erfc((own - mean) / (variance + LEAST_VARIANCE).sqrt() / math.sqrt(2)) / 2
    return -share


def typical(others: Tensor) -> Tensor:
    """Which signals (K, N) lie less than ``OUTLYING`` standard deviations above the mean of their record, bool.

    Where none does, because all are equal, or fewer than ``FEWEST_WITH_OUTLIERS`` are there, all count as typical.

    Source: Zhu et al. 2025, the authors' code, for cosines.
    """
    below = others < others.mean(0) + OUTLYING * others.std(0, unbiased=False)
    return below | ~below.any(0) if len(others) >= FEWEST_WITH_OUTLIERS else torch.ones_like(below)


def _settings(tensors: NamedTensors) -> tuple[str, bool]:
    values = tensors.get(f"{PART}/settings")
    if values is None or tuple(values.shape) != (2,) or values.is_floating_point():
        raise AttackError(f"{PART}/settings is missing or is not two whole numbers")
    at, compared = values.tolist()
    if not 0 <= at < len(SIGNALS) or compared not in (0, 1):
        allowed = f"0 to {len(SIGNALS) - 1}, and 0 or 1"
        raise AttackError(f"{PART}/settings holds {at} and {compared}; allowed: {allowed}")
    return SIGNALS[at], bool(compared)


def _round(tensors: NamedTensors, prefix: str, held: nn.Module) -> ObservedRound:
    parts: dict[str, Tensors] = {"weights": {}, "updates": {}}
    for key, value in tensors.items():
        if key.startswith(prefix):
            part, _, name = key.removeprefix(prefix).partition("/")
            if part not in parts:
                raise AttackError(f"{key!r} names no part; allowed: {prefix}weights/NAME and {prefix}updates/NAME")
            parts[part][name] = value
    weights, updates = parts["weights"], parts["updates"]
    least, most = {name for name, _ in held.named_parameters()}, set(shared_tensors(held))
    if set(weights) != most or not least <= set(updates) <= most:
        raise AttackError(
            f"missing or unknown names: {sorted(set(weights) ^ most)[:3]}, {sorted(least - set(updates))[:3]}"
        )
    counts = {len(value) if value.ndim else 0 for value in updates.values()}
    if len(counts) != 1 or 0 in counts:
        raise AttackError("updates are of different numbers of clients, or of none")
    for at in range(counts.pop()):  # shapes and values must fit the model
        overwrite(held, {name: value[at] for name, value in updates.items()})
    overwrite(held, weights)
    like = shared_tensors(held)
    return ObservedRound(
        {name: value.to(like[name]) for name, value in weights.items()},
        {name: value.to(like[name]) for name, value in updates.items()},
    )
