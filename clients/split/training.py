"""The client's work in split learning: it sends smashed data and trains its half with the gradients that come back; no Flower here.

Data flow: images -> input defences -> normalise -> embedding -> stages on tokens -> client blocks -> stages on smashed data ->
wire (``clients.split.batches``).
"""

import copy
import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from attacks.local_model import shared_tensors
from attacks.scoring.roc import auc
from clients.federated.client import TrainingError
from clients.models.split.halves import EdgeHalf, RawPatches
from clients.split.batches import AuditBatches, SplitBatches, smashed
from clients.split.plan import SplitPlan, build_optimizer
from clients.task.batches import chunks
from clients.task.local_data import Client, LocalData
from clients.task.task import load_weights
from clients.task.truths import Truths
from clients.training.evaluation import device
from clients.training.sgd import flat_state, load_flat_state, protect_gradient
from defenses.random_draws import generator_for
from defenses.tensors import NamedTensors, Tensors, Update, on_cpu, part_of

NETWORK = "network/"
"""Prefix of the weights of a network that an edge-training defence keeps at the client."""
NETWORK_OPTIMIZER = "1/"
"""Prefix of that network's optimizer state: the second of a client's optimizers."""


@dataclass(frozen=True)
class EdgeState:
    """A client's state of its half between messages: weights, optimizers (see ``flat_state``), steps of the round."""

    weights: Tensors
    optimizer: Tensors = field(default_factory=dict)
    steps: int = 0


class SplitClient(Client):
    """One client's work on one task of split learning: its training ``batches``, and the ``audits`` that the server may ask for."""

    def __init__(self, data: LocalData) -> None:
        super().__init__(data)
        self.plan = SplitPlan.narrow(data.task.plan)
        self.batches = SplitBatches(data)
        self.audits = AuditBatches(self.batches)

    def truths(self, observation: str) -> Truths:
        """One view for each audit batch, in which an image keeps its row."""
        if observation != "smashed":
            return super().truths(observation)
        return Truths(
            [self.audits.truth(target) for target in range(self.task.plan.probe_targets)],
            paired=True,
            in_paper_scale=True,
            embed=self._embed if self.data.card.is_table and not self.plan.trains_edge else None,
        )

    @torch.no_grad()
    def _embed(self, rows: Tensor) -> Tensor:
        """What the frozen client half makes of rows of a table, before any defence: (n, F, D) on the CPU."""
        return _initial_edge(self.plan).embed(rows.to(device())).cpu()

    def begin_round(self, weights: NamedTensors, before: EdgeState) -> EdgeState:
        """The client half as sent by the server; a defence's own network resumes from its state in ``before``."""
        network = {name: tensor for name, tensor in before.weights.items() if name.startswith(NETWORK)}
        learned = {name: tensor for name, tensor in before.optimizer.items() if name.startswith(NETWORK_OPTIMIZER)}
        return EdgeState({**weights, **network}, learned)

    def apply_gradients(self, state: EdgeState, first: int, gradients: Sequence[Tensor]) -> EdgeState:
        """Step the client half with the gradients of consecutive batches, from ``first`` on, that were sent with the weights in
        ``state``.

        All gradients (B, N, D) of the loss are taken at those weights, as the server's are; then one step follows for each,
        in order. With one batch per message this is exact training; with K, a gradient is up to K - 1 steps late.

        Raises:
            TrainingError: When a gradient does not fit, or the weights are no longer finite.
        """
        edge = self.load_edge(state.weights)
        network = self._network(edge, state.weights)
        parameters = [*edge.parameters(), *(network.parameters() if network else ())]
        groups = [{"params": list(edge.parameters()), "lr": self.task.learning_rate}]
        optimizers = [build_optimizer(self.plan, groups)]
        optimizers += [torch.optim.Adam(network.parameters())] if network else []
        load_flat_state(optimizers, state.optimizer)
        steps = []
        for at, gradient in enumerate(gradients):
            loss = self._surrogate(edge, network, first + at, gradient.to(device()))
            steps.append(torch.autograd.grad(loss, parameters, allow_unused=True))
        self.data.renew("edge-step", first, len(gradients))
        for at, step in enumerate(steps):
            for parameter, own in zip(parameters, step, strict=True):
                parameter.grad = own
            protect_gradient(
                self.pipeline, edge, self.data.key("edge-step", self.task.round, first + at, number=first + at)
            )
            for optimizer in optimizers:
                optimizer.step()
        weights = on_cpu(shared_tensors(edge))
        if bad := [name for name, tensor in weights.items() if not torch.isfinite(tensor).all()]:
            raise TrainingError(
                f"client {self.data.partition}, round {self.task.round}: training diverged, {bad[0]!r} is not finite; lower "
                f"block-learning-rate (now {self.task.learning_rate:g})"
            )
        if network:
            weights |= on_cpu(network.state_dict(), NETWORK)
        return EdgeState(weights, flat_state(optimizers), state.steps + len(steps))

    def _surrogate(self, edge: EdgeHalf, network: nn.Module | None, number: int, gradient: Tensor) -> Tensor:
        """A scalar whose gradient is that of the server's loss (and of an edge-training defence's penalty)."""
        features = self.batches.smash(edge, number).features
        if features.shape != gradient.shape:
            raise TrainingError(
                f"the gradient of batch {number} is {tuple(gradient.shape)}, expected {tuple(features.shape)}"
            )
        loss = (features * gradient).sum()
        if network is None or self.pipeline.edge_training is None:
            return loss
        patches = RawPatches(self.plan.patch_size)(self.batches.originals(number).images.to(device()))
        own, penalty = self.pipeline.edge_training.losses(network, features, patches)
        return loss + own + penalty

    def _network(self, edge: EdgeHalf, weights: NamedTensors) -> nn.Module | None:
        defense = self.pipeline.edge_training
        if defense is None:
            return None
        values = self.plan.patch_size**2 * self.data.card.input_shape[0]
        network = defense.build_network(
            edge.num_tokens, self.pipeline.widening * edge.dim, values, generator_for(*self.data.key("network"))
        ).to(device())
        if kept := part_of(weights, NETWORK):
            network.load_state_dict(kept)
        return network

    def load_edge(self, weights: NamedTensors) -> EdgeHalf:
        """The client half with these weights; without any, and where it is frozen, as it was initialised."""
        edge, trains = copy.deepcopy(_initial_edge(self.plan)), self.plan.trains_edge
        if weights and trains:
            load_weights(edge, weights)
        return edge.requires_grad_(trains).train(trains)

    def edge_update(self, before: NamedTensors, after: NamedTensors) -> Update:
        """This client's update of its half at the end of a round: after - before, through the update defences."""
        update = {name: after[name] - weight for name, weight in before.items()}
        self.data.renew("collect")
        return self.pipeline.protect_update(update, self.data.key("collect", self.task.round))

    def smash_test(self, edge: EdgeHalf, first: int, count: int) -> Tensor:
        """Smashed data (b, N, D) of this client's test examples ``first`` to ``first + count``, protected as in use.

        Examples are mixed in batches as large as in training, whatever a message holds; one that is left over joins the last.
        """
        self.data.renew("test-tokens")
        sent = []
        for positions in chunks(min(count, self.data.num_test - first), self.task.plan.batch_size, first):
            start = int(positions[0])
            images = self.data.protected_test("test", self.data.test_plain(positions), start).images
            with torch.no_grad():
                sent.append(smashed(self.data, edge, images, self.data.key("test-tokens", self.task.round, start)))
        return torch.cat(sent)

    def judge(self, logits: Tensor) -> dict[str, list[float]]:
        """Counts behind accuracy and correlation, from the server's logits (n, K) of all test examples.

        Returns:
            "true-positives", "false-positives" and "false-negatives", K numbers each, one class (or label) against the others;
            "examples" and the summed "loss", one number each. Of a table also "pairs": of all pairs of an example of class 1 and
            one of class 0, how many have the first logit above the second (ties count one half), and how many there are.

        Raises:
            ValueError: When there are not as many logits as test examples.
        """
        truth = self.data.test_labels()
        if len(logits) != len(truth):
            raise ValueError(f"{len(logits)} logits for {len(truth)} test examples")
        objective = self.task.plan.objective
        targets = objective.targets(truth, self.data.card.num_classes)
        said, true = objective.answers(logits), targets > 0
        return (_pairs(logits, truth, self.data.reported) if self.data.card.is_table else {}) | {
            "true-positives": (said & true).sum(0).tolist(),
            "false-positives": (said & ~true).sum(0).tolist(),
            "false-negatives": (~said & true).sum(0).tolist(),
            "examples": [len(truth)],
            "loss": [len(truth) * self.data.reported(float(objective.loss(logits, targets)))],
        }


def _pairs(logits: Tensor, truth: Tensor, reported: Callable[[float], float]) -> dict[str, list[float]]:
    """The counts behind an area under the ROC curve of two classes, of which ``reported`` is sent."""
    score = logits[:, 1] - logits[:, 0]
    members, others = score[truth == 1], score[truth == 0]
    pairs = len(members) * len(others)
    return {"pairs": [pairs * reported(auc(members, others)) if pairs else 0.0, float(pairs)]}


@functools.lru_cache(maxsize=16)
def _initial_edge(plan: SplitPlan) -> EdgeHalf:
    return plan.build_halves()[0].to(device())
