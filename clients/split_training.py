"""The client's work in split learning: it sends smashed data and trains its half with the gradients that come back; no Flower here.

Data flow: images -> input defences -> normalise -> embedding -> stages on tokens -> client blocks -> stages on smashed data ->
wire. A batch is named by its number in the round: its examples, its shuffles and its noise follow from that alone, so that the
forward pass can be computed again when the gradient arrives.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from attacks.local_model import shared_tensors
from attacks.smashed import smash
from clients.split_models import EdgeHalf, RawPatches
from clients.task import Task, load_weights
from clients.training import LocalClient, Probed, TrainingError, chunks, device
from defenses.base import Batch, Key, Update, generator_for

NETWORK = "network/"
"""Prefix of the weights of a network that an edge-training defence keeps at the client."""
NETWORK_OPTIMIZER = "1/"
"""Prefix of that network's optimizer state: the second of a client's optimizers."""


@dataclass(frozen=True)
class EdgeState:
    """What a client keeps of its half between the messages of one round.

    Attributes:
        weights: Name -> tensor.
        optimizer: Flat state of the optimizers (see ``flat_state``); empty before the first step.
        steps: Optimizer steps so far in this round.
    """

    weights: dict[str, Tensor]
    optimizer: dict[str, Tensor] = field(default_factory=dict)
    steps: int = 0


@dataclass(frozen=True)
class Smashed:
    """One batch on the wire.

    Attributes:
        features: (B, N, D), after all defences.
        examples: (B,) int64, positions among the client's training examples: where the server holds the labels, it needs these.
        targets: (B, K) class probabilities: where the labels travel, they travel with the tokens.
    """

    features: Tensor
    examples: Tensor
    targets: Tensor


class SplitClient(LocalClient):
    """One client's data and its work on one split task. Arguments as ``LocalClient``."""

    def num_batches(self) -> int:
        """Batches of one round."""
        return len(self.task.split_batches(self.num_train))

    def smash_batch(self, edge: EdgeHalf, number: int) -> Smashed:
        """Batch ``number`` of this round as it is (or was) sent; autograd passes through where the weights ask for it."""
        examples = self._examples(number)
        batch = self._shown(examples, number)
        features = self._smash(edge, batch.images, self.batch_key("batch", number))
        return Smashed(features, examples, batch.targets)

    def send_batches(self, edge: EdgeHalf, first: int, count: int) -> list[Smashed]:
        """Batches ``first`` to ``first + count`` of this round (fewer at its end), with new draws."""
        self.renew("batches", first, count)
        return [self.smash_batch(edge, number) for number in range(first, min(first + count, self.num_batches()))]

    def _examples(self, number: int) -> Tensor:
        number, at = self.task.place_in_pass(self.num_train, number)
        return self._order(number)[at * self.task.batch_size : (at + 1) * self.task.batch_size]

    def _order(self, number: int) -> Tensor:
        """All training examples in the order of one pass of the run."""
        return torch.randperm(self.num_train, generator=generator_for(*self.key("order", number)))

    def transmissions(self, first_round: int, last_round: int) -> Tensor:
        """How often training sends each training example in these rounds, both included: (num_train,) int64.

        It follows from the client's own orders, so that nothing need be kept, and a message that got lost counts as sent.
        """
        counts, size = torch.zeros(self.num_train, dtype=torch.int64), self.task.batch_size
        for number, first, end in self.task.passes_in(self.num_train, first_round, last_round):
            counts[self._order(number)[first * size : end * size]] += 1
        return counts

    def _shown(self, examples: Tensor, number: int) -> Batch:
        """What enters the embedding, in [0, 1]."""
        return self.enter(self.kept(examples), self.batch_key("images", number))

    def batch_key(self, what: str, number: int) -> Key:
        """The random stream of a batch's "images" (input defences) or of the "batch" of their tokens."""
        return self.key("batches", self.task.round, what, number, number=number)

    def _smash(self, edge: EdgeHalf, images: Tensor, key: Key) -> Tensor:
        return smash(edge, self.pipeline, images.to(device()), self.card, key)

    # Training of the client half ----------------------------------------------------------------------------------------

    def begin_round(self, weights: Mapping[str, Tensor], before: EdgeState) -> EdgeState:
        """The client half as the server sent it; a defence's own network goes on learning where it stood in ``before``."""
        network = {name: tensor for name, tensor in before.weights.items() if name.startswith(NETWORK)}
        learned = {name: tensor for name, tensor in before.optimizer.items() if name.startswith(NETWORK_OPTIMIZER)}
        return EdgeState({**weights, **network}, learned)

    def apply_gradients(self, state: EdgeState, first: int, gradients: Sequence[Tensor]) -> EdgeState:
        """Steps the client half with the gradients of consecutive batches that were sent with the weights in ``state``.

        All of them are taken at those weights, as the server's gradients are; then one step follows for each, in order. With one
        batch per message this is exact training; with K, a gradient is up to K - 1 steps late.

        Args:
            state: What the batches were sent with.
            first: Number of the first batch.
            gradients: One (B, N, D) for each batch: the loss's gradient with respect to what was sent.

        Raises:
            TrainingError: When a gradient does not fit, or the weights are no longer finite.
        """
        edge = self.load_edge(state.weights)
        network = self._network(edge, state.weights)
        parameters = [*edge.parameters(), *(network.parameters() if network else ())]
        optimizers = _optimizers(self.task, edge, network)
        load_flat_state(optimizers, state.optimizer)
        slopes = []
        for at, gradient in enumerate(gradients):
            loss = self._surrogate(edge, network, first + at, gradient.to(device()))
            slopes.append(torch.autograd.grad(loss, parameters, allow_unused=True))
        self.renew("edge-step", first, len(gradients))
        for at, step in enumerate(slopes):
            for parameter, slope in zip(parameters, step, strict=True):
                parameter.grad = slope
            self._protect_gradient(edge, self.key("edge-step", self.task.round, first + at, number=first + at))
            for optimizer in optimizers:
                optimizer.step()
        weights = {name: tensor.detach().cpu().clone() for name, tensor in shared_tensors(edge).items()}
        if bad := [name for name, tensor in weights.items() if not torch.isfinite(tensor).all()]:
            raise TrainingError(
                f"client {self.partition}, round {self.task.round}: training diverged, {bad[0]!r} is not finite; lower "
                f"block-learning-rate (now {self.task.edge_learning_rate:g})"
            )
        if network:
            weights |= {NETWORK + name: t.detach().cpu().clone() for name, t in network.state_dict().items()}
        return EdgeState(weights, flat_state(optimizers), state.steps + len(slopes))

    def _surrogate(self, edge: EdgeHalf, network: nn.Module | None, number: int, gradient: Tensor) -> Tensor:
        """A scalar whose gradient is that of the server's loss (and of an edge-training defence's penalty)."""
        features = self.smash_batch(edge, number).features
        if features.shape != gradient.shape:
            raise TrainingError(
                f"the gradient of batch {number} is {tuple(gradient.shape)}, expected {tuple(features.shape)}"
            )
        loss = (features * gradient).sum()
        if network is None or self.pipeline.edge_training is None:
            return loss
        patches = RawPatches(self.task.patch_size)(self._originals_at(number).images.to(device()))
        own, penalty = self.pipeline.edge_training.losses(network, features, patches)
        return loss + own + penalty

    def _originals_at(self, number: int) -> Batch:
        """The views that a batch was made of, before all defences."""
        return self.augmented(self.plain(self._examples(number)), self.batch_key("images", number))

    def _network(self, edge: EdgeHalf, weights: Mapping[str, Tensor]) -> nn.Module | None:
        """The network of an edge-training defence, with its kept weights."""
        defense = self.pipeline.edge_training
        if defense is None:
            return None
        values = self.task.patch_size**2 * self.card.input_shape[0]
        network = defense.build_network(
            edge.num_tokens, self.pipeline.widening * edge.dim, values, generator_for(*self.key("network"))
        ).to(device())
        if kept := {name.removeprefix(NETWORK): t for name, t in weights.items() if name.startswith(NETWORK)}:
            network.load_state_dict(kept)
        return network

    def load_edge(self, weights: Mapping[str, Tensor]) -> EdgeHalf:
        """The client half with these weights; without any, as it was initialised."""
        edge = copy.deepcopy(_initial_edge(replace(self.task, round=0, edge_learning_rate=0.0)))
        if weights:
            load_weights(edge, weights)
        return edge.requires_grad_(self.task.trains_edge).train(self.task.trains_edge)

    def edge_update(self, before: Mapping[str, Tensor], after: Mapping[str, Tensor]) -> Update:
        """What this client sends of its half at the end of a round: after - before, through the update defences."""
        update = {name: after[name] - weight for name, weight in before.items()}
        self.renew("collect")
        return self.pipeline.protect_update(update, self.key("collect", self.task.round))

    # Evaluation ---------------------------------------------------------------------------------------------------------

    def smash_test(self, edge: EdgeHalf, first: int, count: int) -> Tensor:
        """Smashed data (b, N, D) of this client's test examples ``first`` to ``first + count``, protected as in use.

        Examples are mixed in batches as large as in training, whatever a message holds; one that is left over joins the last.
        """
        self.renew("test-tokens")
        with torch.no_grad():
            sent = [
                self._smash(
                    edge, self._test_shown(positions), self.key("test-tokens", self.task.round, int(positions[0]))
                )
                for positions in chunks(min(count, self.num_test - first), self.task.batch_size, first)
            ]
        return torch.cat(sent)

    def _test_shown(self, positions: Tensor) -> Tensor:
        return self.protected_test("test", self.test_plain(positions), int(positions[0])).images

    def judge(self, logits: Tensor) -> dict[str, list[float]]:
        """Counts behind accuracy and correlation, from the server's logits (n, K) of all test examples.

        Returns:
            "true-positives", "false-positives" and "false-negatives", K numbers each, one class against the others; "examples" and
            the summed "loss", one number each.

        Raises:
            ValueError: When there are not as many logits as test examples.
        """
        truth = self.data.test.labels[torch.tensor(self._test, dtype=torch.long)]
        if len(logits) != len(truth):
            raise ValueError(f"{len(logits)} logits for {len(truth)} test examples")
        guess, classes = logits.argmax(1), self.card.num_classes
        hits = torch.bincount(truth[guess == truth], minlength=classes)
        return {
            "true-positives": hits.tolist(),
            "false-positives": (torch.bincount(guess, minlength=classes) - hits).tolist(),
            "false-negatives": (torch.bincount(truth, minlength=classes) - hits).tolist(),
            "examples": [len(truth)],
            "loss": [float(nn.functional.cross_entropy(logits, truth, reduction="sum"))],
        }

    # Audit --------------------------------------------------------------------------------------------------------------

    def audited(self, target: int) -> Probed:
        """The images of an audit batch: those that are attacked, as the person holds them and as they entered the embedding.

        Training images, or test images where the server's auxiliary data are the training images themselves.
        """
        view = self._audit_view(target, 0)
        original, seen = (
            Batch(batch.images[: self.task.probe_images], batch.targets[: self.task.probe_images])
            for batch in (view.original, view.seen)
        )
        return Probed(original, seen, view.positions[: self.task.probe_images])

    def send_audited(self, edge: EdgeHalf, target: int, transmissions: int) -> Tensor:
        """Transmissions (R, B, N, D) of an audit batch: the attacked images stay in front, their company changes."""
        self.renew("smash", target)
        with torch.no_grad():
            sent = [
                self._smash(edge, self._audit_shown(target, at).images, self._audit_key(target, at))
                for at in range(transmissions)
            ]
        return torch.stack(sent).cpu()

    def audited_transmissions(self, target: int, first_round: int, last_round: int) -> Tensor:
        """How often the run itself sends each attacked image of an audit batch in these rounds: (n,) int64.

        Training images in training; test images once in the evaluation behind every round, of which round 0 is the first.
        """
        chosen = self._audit_examples(target, 0)[: self.task.probe_images]
        if self.task.auxiliary_data == "private":
            return torch.full((len(chosen),), last_round - first_round + 1)
        return self.transmissions(max(first_round, 1), last_round)[chosen]

    def audit_targets(self, target: int) -> Tensor:
        """Class probabilities (B, K) of the first sending of an audit batch, which the server knows as it does in training."""
        return self._audit_shown(target, 0).targets

    def audit_orders(self, target: int, transmissions: int, num_tokens: int) -> Tensor:
        """Where each token of ``send_audited`` came from: (R, B, N) int64. Only for upper bounds that are told."""
        batch = len(self._audit_examples(target, 0))
        orders = [
            self.pipeline.token_order(batch, num_tokens, self._audit_key(target, at)) for at in range(transmissions)
        ]
        return torch.stack(orders)

    def step_audited(self, edge: EdgeHalf, target: int, gradient: Tensor) -> Update:
        """The update of one plain step of SGD on the first sending of an audit batch, through the update defences.

        An edge-training defence adds nothing to this step: its penalty is left out.
        """
        features = self._smash(edge, self._audit_shown(target, 0).images, self._audit_key(target, 0))
        self.renew("audit-step", target)
        weights, key = dict(edge.named_parameters()), self.key("audit-step", self.task.round, target, number=target)
        loss = (features * gradient.to(device())).sum()
        slopes = torch.autograd.grad(loss, list(weights.values()), allow_unused=True)
        found = {name: slope for name, slope in zip(weights, slopes, strict=True) if slope is not None}
        found = self.pipeline.protect_gradient(found, (*key, "gradient"))
        rate, decay = self.task.edge_learning_rate, self.task.weight_decay
        update = {
            name: -rate * (found.get(name, torch.zeros_like(weight)) + decay * weight).detach().cpu()
            for name, weight in weights.items()
        }
        return self.pipeline.protect_update(update, key)

    def _audit_key(self, target: int, sending: int) -> Key:
        return self.key("smash", self.task.round, target, sending, number=target)

    def _audit_examples(self, target: int, sending: int) -> Tensor:
        """Positions in the audit pool; the attacked ones are the same in all rounds and pipelines, so that curves compare.

        No image is attacked in two batches as long as there are enough.
        """
        size = self.num_test if self.task.auxiliary_data == "private" else self.num_train
        order = torch.randperm(size, generator=generator_for(*self.key("audited")))
        order = order.roll(-target * self.task.probe_images)
        attacked, rest = order[: self.task.probe_images], order[self.task.probe_images :]
        company = max(min(self.task.batch_size, size) - len(attacked), 0)
        drawn = torch.randperm(len(rest), generator=generator_for(*self._audit_key(target, sending), "company"))[
            :company
        ]
        return torch.cat([attacked, rest[drawn]])

    def _audit_shown(self, target: int, sending: int) -> Batch:
        return self._audit_view(target, sending).seen

    def _audit_view(self, target: int, sending: int) -> Probed:
        """An audit batch before the defences and as it enters the embedding; test images are neither cropped nor mirrored."""
        chosen, key = self._audit_examples(target, sending), self._audit_key(target, sending)
        if self.task.auxiliary_data != "private":
            return self.view(chosen, key)
        clean = self.test_plain(chosen)
        return Probed(clean, self.pipeline.protect_test(clean, key), self.num_train + chosen)


def build_optimizer(task: Task, groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
    """The experiment's optimizer over groups of parameters that carry their own learning rates."""
    if task.optimizer == "adamw":
        return torch.optim.AdamW(groups, weight_decay=task.weight_decay)
    return torch.optim.SGD(
        groups, lr=0.0, momentum=task.momentum, weight_decay=task.weight_decay, nesterov=task.nesterov
    )


def flat_state(optimizers: Sequence[torch.optim.Optimizer]) -> dict[str, Tensor]:
    """What optimizers remember, as CPU tensors under "OPTIMIZER/PARAMETER/NAME"; empty before the first step."""
    return {
        f"{which}/{at}/{name}": value.detach().cpu().clone()
        for which, optimizer in enumerate(optimizers)
        for at, values in optimizer.state_dict()["state"].items()
        for name, value in values.items()
        if isinstance(value, Tensor)
    }


def load_flat_state(optimizers: Sequence[torch.optim.Optimizer], flat: Mapping[str, Tensor]) -> None:
    """Gives optimizers back what ``flat_state`` took from them."""
    for which, optimizer in enumerate(optimizers):
        state: dict[int, dict[str, Tensor]] = {}
        for path, value in flat.items():
            owner, at, name = path.split("/")
            if int(owner) == which:
                # An optimizer takes tensors as they are and steps them in place; what is given stays the caller's.
                state.setdefault(int(at), {})[name] = value.clone()
        if state:
            optimizer.load_state_dict({**optimizer.state_dict(), "state": state})


def _optimizers(task: Task, edge: EdgeHalf, network: nn.Module | None) -> list[torch.optim.Optimizer]:
    groups = [{"params": list(edge.parameters()), "lr": task.edge_learning_rate}]
    own = [torch.optim.Adam(network.parameters())] if network else []
    return [build_optimizer(task, groups), *own]


@functools.lru_cache(maxsize=16)
def _initial_edge(task: Task) -> EdgeHalf:
    return task.build_halves()[0].to(device())
