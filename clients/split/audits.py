"""Audit batches of split learning: sent as in training, with images that stay the same from round to round."""

from __future__ import annotations

import torch
from torch import Tensor

from clients.models.split.halves import EdgeHalf
from clients.split.batches import SplitBatches, smashed
from clients.task.truths import Probed, rows
from clients.training.evaluation import device
from defenses.base import Batch, Update
from defenses.random_draws import Key, generator_for


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
                smashed(self.data, edge, self._shown(target, at).images, self._key(target, at))
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
        return self._shown(target, 0).targets

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
        features = smashed(self.data, edge, self._shown(target, 0).images, self._key(target, 0))
        self.data.renew("audit-step", target)
        weights = dict(edge.named_parameters())
        key = self.data.key("audit-step", self.task.round, target, number=target)
        loss = (features * gradient.to(device())).sum()
        gradients = torch.autograd.grad(loss, list(weights.values()), allow_unused=True)
        found = {name: own for name, own in zip(weights, gradients, strict=True) if own is not None}
        found = self.data.pipeline.protect_gradient(found, (*key, "gradient"))
        rate, decay = self.task.learning_rate, self.task.plan.weight_decay
        update = {
            name: -rate * (found.get(name, torch.zeros_like(weight)) + decay * weight).detach().cpu()
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

    def _shown(self, target: int, transmission: int) -> Batch:
        return self._view(target, transmission).seen

    def _view(self, target: int, transmission: int) -> Probed:
        """An audit batch before the defences and as it enters the embedding; test images are neither cropped nor mirrored."""
        chosen, key = self._examples(target, transmission), self._key(target, transmission)
        if self.task.plan.auxiliary_data != "private":
            return self.data.view(chosen, key)
        clean = self.data.test_plain(chosen)
        return Probed(clean, self.data.pipeline.protect_test(clean, key), self.data.num_train + chosen)
