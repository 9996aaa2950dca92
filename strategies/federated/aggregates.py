"""Secure aggregation from the server's view: attacks see sums of clients' one-step updates in place of the updates."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

import torch

from clients.task.task import Task
from defenses.random_draws import generator_for
from defenses.tensors import Tensors, Update
from strategies.audit.jobs import grouped
from strategies.audit.kinds import Observed
from strategies.audit.threat_card import ThreatCard
from strategies.federated.audit import UpdateAudit
from strategies.federated.observations import AGGREGATE, SeenAggregate, SeenUpdate

WITHHELD = "aggregates-withheld"
"""Groups of which fewer than two clients answered: secure aggregation then reveals nothing."""


class SecureSums:
    """Sum the probes of groups of clients, for each group size in ``sizes``, and queue the attacks on the sums.

    No secure aggregation is run: the simulated server holds each update, and hides it from these attacks. The groups are
    drawn from the run's seed, and are the same in every round and pipeline; no client is in two groups of one size, and one
    that is left over is in none. Update defences have acted at each client by then. Of one client the sum is its plain probe.
    """

    def __init__(self, audit: UpdateAudit, sizes: Sequence[int]) -> None:
        self._audit, self._sizes = audit, tuple(sizes)
        self._auditor, self._recorder = audit.auditor, audit.auditor.recorder

    def attack(self, task: Task, weights: Tensors, accuracy: float | None, seen: Sequence[SeenUpdate]) -> None:
        """Queue the attacks on sums of one round's probes; see ``UpdateAudit.attack``."""
        of: dict[int, list[SeenUpdate]] = defaultdict(list)
        for update in seen:
            of[update.partition].append(update)
        partitions = sorted(self._auditor.exchange.nodes)
        for size in self._sizes:
            groups = groups_of(partitions, size, task.plan.seed)
            answered = [[partition for partition in group if partition in of] for group in groups]
            if size > 1 and (hidden := sum(len(group) < 2 for group in answered)):
                self._recorder.row(
                    task, metric=WITHHELD, value=hidden, n=len(groups), status="failed",
                    message=f"of {hidden} groups of {size} clients fewer than two answered: no sum of one is revealed",
                )  # fmt: skip
            # A group is the clients that answered: sums over fewer have attacks of their own.
            for count in range(size, min(size, 2) - 1, -1):
                sums = [
                    total
                    for group in answered
                    if len(group) == count
                    for total in map(_sum, zip(*(of[p] for p in group), strict=True))
                ]
                if sums:
                    self._submit(task, size, sums, weights, accuracy)

    def _submit(
        self, task: Task, size: int, sums: Sequence[SeenAggregate], weights: Tensors, accuracy: float | None
    ) -> None:
        card = self._card(task, size, sums, weights, accuracy)
        willing = set(self._auditor.baselines(task, AGGREGATE, sums, card))
        judged = [replace(total, scorers=torch.tensor([p for p in total.judges if p in willing])) for total in sums]
        judged = [total for total in judged if len(total.scorers)]
        if not judged:
            return
        count = sums[0].num_clients
        name = f"{self._audit.label}-r{task.round:04d}-{AGGREGATE.name}-{size:03d}-{count:03d}"
        observed = Observed(task, weights, judged)
        self._auditor.submit_groups(name, grouped(self._audit.attacks[AGGREGATE])[0], AGGREGATE, observed, card)

    def _card(
        self, task: Task, size: int, sums: Sequence[SeenAggregate], weights: Tensors, accuracy: float | None
    ) -> ThreatCard:
        count = sums[0].num_clients
        hidden = f"sum of {count} clients; single updates are hidden by secure aggregation (assumed, not run)"
        card = self._audit.card(task, AGGREGATE, sums, weights, accuracy).but(
            clients=count, aggregation=hidden if count > 1 else "none: of one client the sum is the plain probe"
        )
        if count < size:
            card = card.but(clients_missing=f"{size - count} of {size} did not answer")
        if count > 1 and sums[0].train_mode and any(name.endswith("running_mean") for name in weights):
            card = card.but(batch_statistics="of each client's own batch, where the attack assumes one batch of all")
        return card


def groups_of(partitions: Sequence[int], size: int, seed: int) -> list[list[int]]:
    """Disjoint ascending groups of ``size`` partitions, drawn from the seed; fewer than ``size`` may be left over."""
    order = torch.randperm(len(partitions), generator=generator_for(seed, "aggregate", size)).tolist()
    full = len(partitions) // size
    return [sorted(partitions[i] for i in order[at * size : (at + 1) * size]) for at in range(full)]


def summed(updates: Sequence[Update], examples: Sequence[int]) -> Update:
    """The mean of clients' updates, weighted by their examples: the server's result from a weighted sum."""
    total = sum(examples)
    names = updates[0]
    return {
        name: torch.stack([u[name].double() * n for u, n in zip(updates, examples, strict=True)]).sum(0).div(total)
        .to(tensor.dtype if tensor.is_floating_point() else torch.float32)
        for name, tensor in names.items()
    }  # fmt: skip


def _sum(ones: Sequence[SeenUpdate]) -> SeenAggregate:
    examples = [seen.num_examples for seen in ones]
    labels = [seen.labels for seen in ones if seen.labels is not None]
    return SeenAggregate(
        partition=ones[0].partition,
        target=ones[0].target,
        num_examples=sum(examples),
        update=summed([seen.update for seen in ones], examples),
        local_steps=max(seen.local_steps for seen in ones),
        labels=torch.cat(labels) if len(labels) == len(ones) else None,
        train_mode=ones[0].train_mode,
        num_clients=len(ones),
        scorers=torch.tensor([seen.partition for seen in ones]),
    )
