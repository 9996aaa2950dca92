"""What one round says about a record: numbers for each client's update, higher where the client trained on the record."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from attacks.local_model import overwrite, shared_tensors
from attacks.membership.loss_threshold import loss_of, predict
from attacks.observations import AttackError

LOSSES = ("loss", "drop")
"""Signals from the losses of a record."""
COSINE = "cosine"
"""The signal from the gradient of a record."""
SIGNALS = (*LOSSES, COSINE)
MOST_VALUES = 2**20
"""Values of gradients of single records that are held at once: 4 MiB, which stay in a processor's cache."""


@dataclass(frozen=True)
class ObservedRound:
    """One round as the server saw it.

    Attributes:
        weights: ``shared_tensors`` of the global model that the server sent.
        updates: Name -> (K, ...) updates (local - global) of K clients, the attacked client's first; all parameters, and the
            buffers that the clients sent.
    """

    weights: dict[str, Tensor]
    updates: dict[str, Tensor]

    @property
    def num_clients(self) -> int:
        """K."""
        return len(next(iter(self.updates.values())))

    def local_weights(self) -> Iterator[dict[str, Tensor]]:
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
        return _loss_signals(seen, kind, model, images, classes)
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

    def confidence(values: Mapping[str, Tensor], image: Tensor, own: Tensor) -> Tensor:
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
            raise AttackError(
                f"does not apply: {type(model).__name__} has no gradients of single records: {error}"
            ) from error
        flat = torch.cat([found[name].flatten(1) for name in parameters], 1).float()
        yield flat.nan_to_num(nan=0.0, posinf=0.0, neginf=0.0)


def _loss_signals(seen: ObservedRound, kind: str, model: nn.Module, images: Tensor, classes: Tensor) -> Tensor:
    held, classes = copy.deepcopy(model), classes.cpu()
    losses = torch.stack(
        [loss_of(predict(overwrite(held, weights), images), classes) for weights in seen.local_weights()]
    )
    if kind == "loss":
        return -losses
    return loss_of(predict(overwrite(held, seen.weights), images), classes) - losses


def names_of_updates(model: nn.Module) -> tuple[set[str], set[str]]:
    """Names that updates of a model hold at least (parameters), and at most (all ``shared_tensors``)."""
    return {name for name, _ in model.named_parameters()}, set(shared_tensors(model))
