"""Training on the server's own examples in the way of a client, for attacks that learn from their own models or updates."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from dataclasses import replace

from torch import Tensor, nn

from attacks.local_model import shared_tensors
from attacks.observations import AttackError
from clients.federated.client import Ledger, LocalClient
from clients.federated.plan import FederatedPlan
from clients.task.batches import join
from clients.task.local_data import BLOCK, LocalData
from clients.task.task import Plan, Task, load_weights
from defenses.base import Batch
from defenses.random_draws import generator_for, seed_of
from defenses.tensors import NamedTensors, Update

AT_ONCE = 16
"""Updates that are held at once."""


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
    own_seed = seed_of(generator_for("alone", plan.seed, seed), 31)
    alone = replace(plan, seed=own_seed)
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


def probes_alone(
    task: Task, weights: NamedTensors, batch: Batch, count: int, seed: int
) -> Iterator[tuple[Tensor, Update]]:
    """Compute ``count`` one-step updates that a client with these examples would send in a round, each with own images and draws.

    The task's pipeline protects them, under draws that follow from ``seed``. A protection that an image gets once and keeps is
    drawn anew for every ``AT_ONCE`` updates, which rarely show it twice. Noise that follows from a privacy budget (DP-SGD) is
    that of a client with so many examples.

    Yields:
        Positions (b,) of the images behind an update, and the update.

    Raises:
        AttackError: When there are fewer examples than images in an update.
    """
    if len(batch) < task.plan.probe_images:
        raise AttackError(
            f"an update is of {task.plan.probe_images} images, and {len(batch)} of the server's are left for it; raise "
            "auxiliary-fraction"
        )
    for at in range(0, count, AT_ONCE):
        own_seed = seed_of(generator_for("probes alone", task.plan.seed, seed, at), 31)
        mine = task.but(seed=own_seed, probe_targets=min(AT_ONCE, count - at))
        client = LocalClient(_GivenData(mine, batch, -1))
        for target, update in enumerate(client.probe(weights, {}).updates):
            yield client.probed_positions(target), update
