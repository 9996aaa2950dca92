"""Audit of a client-level claim on a run's own training updates, by clients that are canaries.

The first clients of a run hand an auditor's direction, or its negative, to their defence in place of their update. A coin decides.
The server adds up the inner products of what it receives with these directions. It asks for the coins after the last round.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from flwr.app import Message
from torch import Tensor

from attacks.dp_audit.canary_clients import PlacedClient, client_defense, parts_of
from attacks.dp_audit.verdict import CanaryPart
from clients.federated.canaries import shared_shapes
from clients.task.task import Plan, Task
from clients.wire.records import tensors_of, values_of
from strategies.audit.recorder import Recorder
from strategies.exchange.guard import GuardedExchange
from strategies.federated.dp_audit import CanaryAudit

TENSORS = "tensors"
"""View of a canary client: its score in each tensor."""


class ClientCanaryAudit(CanaryAudit):
    """The audit of one pipeline with a client-level claim; arguments as for ``CanaryAudit``."""

    def __init__(self, plan: Plan, sizes: Mapping[int, int], exchange: GuardedExchange, recorder: Recorder) -> None:
        super().__init__(plan, sizes, exchange, recorder)
        self._shapes = shared_shapes(plan.build_model()) if self.active else {}

    @property
    def active(self) -> bool:
        """Whether there is a claim to test."""
        return bool(self.canaries) and client_defense(self.plan.defenses()) is not None

    @property
    def canary_clients(self) -> range:
        """The first clients of the run."""
        return range(self.canaries if self.active else 0)

    def observe(
        self, task: Task, weights: Mapping[str, Tensor], replies: Mapping[int, Message], names: Sequence[str]
    ) -> None:
        """Add up what the updates of a round say about each canary client; what else it reports follows from no coin."""
        for partition in sorted(one for one in replies if one in self.canary_clients):
            reply = replies[partition]
            self._note_claim(partition, values_of(reply, "metrics"))
            value = self._client(partition).scores(tensors_of(reply, "arrays"), task.round)
            kept = self._views[partition]
            kept[TENSORS] = kept[TENSORS] + value if TENSORS in kept else value

    def _client(self, partition: int) -> PlacedClient:
        return PlacedClient.of(self._shapes, self.plan.seed, partition)

    def _expected(self, partition: int) -> dict[str, tuple[int, ...]]:
        return {"coins": (1,)}

    def _parts(self, coins: Mapping[int, Mapping[str, Tensor]]) -> dict[str, CanaryPart]:
        known = [partition for partition in coins if TENSORS in self._views[partition]]
        if not known:
            return {}
        placed = [self._client(partition) for partition in known]
        by_client = torch.stack([self._views[partition][TENSORS] for partition in known])
        scores = dict(zip(placed[0].along, by_client.T, strict=True))
        turns = torch.tensor([one.turns for one in placed])
        return parts_of(scores, torch.cat([coins[partition]["coins"] for partition in known]), turns)


def audit_of(plan: Plan, sizes: Mapping[int, int], exchange: GuardedExchange, recorder: Recorder) -> CanaryAudit:
    """The audit by canaries that fits a pipeline's claim; it does nothing without a claim or without canaries."""
    kind = CanaryAudit if client_defense(plan.defenses()) is None else ClientCanaryAudit
    return kind(plan, sizes, exchange, recorder)
