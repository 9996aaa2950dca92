"""A client's training examples in split learning: the examples of each batch, and the data sent of them.

A batch is named by its number in the round: its examples, its shuffles and its noise follow from that alone, so that the
forward pass can be computed again when the gradient arrives.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from attacks.sender import smash
from clients.models.split.halves import EdgeHalf
from clients.split.plan import SplitPasses
from clients.task.local_data import LocalData
from clients.task.truths import Probed, rows
from clients.training.evaluation import device
from defenses.base import Batch
from defenses.random_draws import Key, generator_for
from defenses.tensors import Update


@dataclass(frozen=True)
class SmashedBatch:
    """One batch on the wire.

    Attributes:
        features: (B, N, D), after all defences.
        examples: (B,) int64, positions among the client's training examples: where the server holds the labels, it needs these.
        targets: (B, K) class probabilities: where the labels travel, they travel with the tokens.
    """

    features: Tensor
    examples: Tensor
    targets: Tensor


class SplitBatches:
    """The batches of one round. Their number (``len``), content and draws follow from the task and the client's own streams."""

    def __init__(self, data: LocalData) -> None:
        self.data, self.task = data, data.task
        self._passes = SplitPasses(data.task, data.num_train)

    def __len__(self) -> int:
        return len(self._passes.batches())

    def smash(self, edge: EdgeHalf, number: int) -> SmashedBatch:
        """Smashed data of batch ``number`` of this round; autograd passes through where the weights require it."""
        examples = self._examples(number)
        batch = self.data.enter(self.data.kept(examples), self.key("images", number))
        features = smashed(self.data, edge, batch.images, self.key("batch", number))
        return SmashedBatch(features, examples, batch.targets)

    def send(self, edge: EdgeHalf, first: int, count: int) -> list[SmashedBatch]:
        """Batches ``first`` to ``first + count`` of this round (fewer at its end), with new draws."""
        self.data.renew("batches", first, count)
        return [self.smash(edge, number) for number in range(first, min(first + count, len(self)))]

    def _examples(self, number: int) -> Tensor:
        number, at = self._passes.place(number)
        return self._order(number)[at * self.task.plan.batch_size : (at + 1) * self.task.plan.batch_size]

    def _order(self, number: int) -> Tensor:
        """All training examples in the order of one pass of the run."""
        return torch.randperm(self.data.num_train, generator=generator_for(*self.data.key("order", number)))

    def transmissions(self, first_round: int, last_round: int) -> Tensor:
        """How often training sends each training example in these rounds, both included: (num_train,) int64.

        It follows from the client's own orders, so that nothing need be kept, and a message that got lost counts as sent.
        """
        counts, size = torch.zeros(self.data.num_train, dtype=torch.int64), self.task.plan.batch_size
        for number, first, end in self._passes.within(first_round, last_round):
            counts[self._order(number)[first * size : end * size]] += 1
        return counts

    def key(self, what: str, number: int) -> Key:
        """The random stream of a batch's "images" (input defences) or of the "batch" of their tokens."""
        return self.data.key("batches", self.task.round, what, number, number=number)

    def originals(self, number: int) -> Batch:
        """The images of a batch before all defences."""
        return self.data.augmented(self.data.plain(self._examples(number)), self.key("images", number))


def smashed(data: LocalData, edge: EdgeHalf, images: Tensor, key: Key) -> Tensor:
    """Smashed data (B, N, D) of images that entered the client half, after all defences."""
    return smash(edge, data.pipeline, images.to(device()), data.card, key)


class AuditBatches:
    """One client's audit batches, by the number of the target."""

    def __init__(self, batches: SplitBatches) -> None:
        self.batches, self.data, self.task = batches, batches.data, batches.data.task

    def truth(self, target: int) -> Probed:
        """The attacked images of an audit batch: the originals, and as they entered the embedding.

        Training images, or test images where the server's auxiliary data are the training images themselves.
        """
        return rows(self._view(target, 0), slice(self.task.plan.probe_images))

    def send(self, edge: EdgeHalf, target: int, transmissions: int) -> Tensor:
        """Transmissions (R, B, N, D) of an audit batch: the attacked images stay in front, the other images change."""
        self.data.renew("smash", target)
        with torch.no_grad():
            sent = [
                smashed(self.data, edge, self._view(target, at).seen.images, self._key(target, at))
                for at in range(transmissions)
            ]
        return torch.stack(sent).cpu()

    def transmissions(self, target: int, first_round: int, last_round: int) -> Tensor:
        """How often the run itself sends each attacked image of an audit batch in these rounds: (n,) int64.

        Training images in training; test images once in the evaluation behind every round, of which round 0 is the first.
        """
        chosen = self._examples(target, 0)[: self.task.plan.probe_images]
        if self.task.plan.auxiliary_data == "private":
            return torch.full((len(chosen),), last_round - first_round + 1)
        return self.batches.transmissions(max(first_round, 1), last_round)[chosen]

    def targets(self, target: int) -> Tensor:
        """Class probabilities (B, K) of the first transmission of an audit batch, which the server knows as it does in training."""
        return self._view(target, 0).seen.targets

    def orders(self, target: int, transmissions: int, num_tokens: int) -> Tensor:
        """Where each token of ``send`` came from: (R, B, N) int64. Only for upper bounds that need it."""
        batch = len(self._examples(target, 0))
        orders = [
            self.data.pipeline.token_order(batch, num_tokens, self._key(target, at)) for at in range(transmissions)
        ]
        return torch.stack(orders)

    def step(self, edge: EdgeHalf, target: int, gradient: Tensor) -> Update:
        """The update of one plain step of SGD on the first transmission of an audit batch, through the update defences.

        An edge-training defence adds nothing to this step: its penalty is left out.
        """
        features = smashed(self.data, edge, self._view(target, 0).seen.images, self._key(target, 0))
        self.data.renew("audit-step", target)
        weights = dict(edge.named_parameters())
        key = self.data.key("audit-step", self.task.round, target, number=target)
        loss = (features * gradient.to(device())).sum()
        gradients = torch.autograd.grad(loss, list(weights.values()), allow_unused=True)
        grads = {name: own for name, own in zip(weights, gradients, strict=True) if own is not None}
        grads = self.data.pipeline.protect_gradient(grads, (*key, "gradient"))
        rate, decay = self.task.learning_rate, self.task.plan.weight_decay
        update = {
            name: -rate * (grads.get(name, torch.zeros_like(weight)) + decay * weight).detach().cpu()
            for name, weight in weights.items()
        }
        return self.data.pipeline.protect_update(update, key)

    def _key(self, target: int, transmission: int) -> Key:
        return self.data.key("smash", self.task.round, target, transmission, number=target)

    def _examples(self, target: int, transmission: int) -> Tensor:
        """Positions in the audit pool; the attacked ones are the same in all rounds, and no image is in two batches."""
        size = self.data.num_test if self.task.plan.auxiliary_data == "private" else self.data.num_train
        order = torch.randperm(size, generator=generator_for(*self.data.key("audited")))
        order = order.roll(-target * self.task.plan.probe_images)
        attacked, rest = order[: self.task.plan.probe_images], order[self.task.plan.probe_images :]
        company = max(min(self.task.plan.batch_size, size) - len(attacked), 0)
        drawn = torch.randperm(len(rest), generator=generator_for(*self._key(target, transmission), "company"))
        return torch.cat([attacked, rest[drawn[:company]]])

    def _view(self, target: int, transmission: int) -> Probed:
        """An audit batch before the defences and as it enters the embedding; test images are neither cropped nor mirrored."""
        chosen, key = self._examples(target, transmission), self._key(target, transmission)
        if self.task.plan.auxiliary_data != "private":
            return self.data.view(chosen, key)
        clean = self.data.test_plain(chosen)
        return Probed(clean, self.data.pipeline.protect_test(clean, key), self.data.num_train + chosen)
