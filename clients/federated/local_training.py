"""Training on the server's own examples in the way of a client, for attacks that learn from their own models."""

import functools
import math
from dataclasses import replace

from torch import Tensor, nn

from attacks.local_model import shared_tensors
from clients.federated.client import Ledger, LocalClient
from clients.federated.plan import FederatedPlan
from clients.task.batches import join
from clients.task.local_data import BLOCK, LocalData
from clients.task.task import Plan, Task, load_weights
from defenses.base import Batch
from defenses.random_draws import generator_for, seed_of


class _GivenData(LocalData):
    def __init__(self, task: Task, batch: Batch, partition: int) -> None:
        super().__init__(task, partition, range(len(batch)), ())
        self._batch = batch

    def plain(self, positions: Tensor) -> Batch:
        """Of the given examples."""
        return self._batch.rows(positions)

    @functools.cached_property
    def _whole(self) -> Batch:
        """Kept here, as a batch has no name to cache it by."""
        return join([self._kept_block(at) for at in range(math.ceil(self.num_train / BLOCK))])


def train_alone(plan: Plan, batch: Batch, seed: int) -> nn.Module:
    """Train a model on one batch of examples as a client would: as many rounds, the same pipeline.

    It is in eval mode. Its weights and its training follow from ``seed``, which touches no seed of a client.

    Noise that follows from a privacy budget (``DPSGD(target_epsilon=...)``) is that of a client with so many examples, because the
    sample rate follows from their number. It equals a client's noise if the batch is as large as the client's data.
    """
    # Streams that no client has: clients' partitions count from 0.
    alone = replace(plan, seed=seed_of(generator_for("alone", plan.seed, seed), 31))
    if isinstance(alone, FederatedPlan):
        alone = replace(alone, dp_canaries=0)  # an auditor's, which the server's own examples need not carry
    data = _GivenData(alone.at(1), batch, -1)
    client = LocalClient(data)
    weights = shared_tensors(alone.build_model())
    ledger: Ledger = {}
    for server_round in range(1, plan.rounds + 1):
        data.task = alone.at(server_round)
        result = client.train(weights, ledger)
        ledger = result.ledger
        weights = {name: weight + result.updates[0][name] for name, weight in weights.items()}
    return load_weights(alone.build_model(), weights).eval()
