"""SplitFed: a curious server trains the server half of a split transformer on the clients' smashed data.

A round is one pass (or ``local-steps`` batches) over every client's data. Each ``train.step`` message carries K batches and the
gradients of the K before. The server steps its half once for every batch, client after client (SplitFedV2 of Thapa et al., AAAI
2022); a trained client half is averaged at the end of the round. With K = 1 and one client this is exact training of the whole
chain; with more, the client half is up to K - 1 steps behind.
"""

import itertools
import math
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from flwr.app import Message, RecordDict
from torch import Tensor

from attacks.metrics.training import (
    BATCHES_LOST,
    BYTES_PER_SAMPLE,
    CLIENTS_FAILED,
    EPSILON_WITH_PROBES,
    SAMPLES_PER_SECOND,
    TRAIN_LOSS,
    TRAIN_SECONDS,
    UPDATE_BYTES,
)
from attacks.smashed.base import SmashedAttack
from clients.split.plan import SplitPasses, SplitPlan, build_optimizer
from clients.task.task import Task, load_weights
from clients.training.evaluation import device
from clients.training.sgd import flat_state, load_flat_state
from clients.wire.records import tensors_of, to_record
from defenses.tensors import Tensors, part_of, under
from strategies.audit.auditor import Auditor
from strategies.audit.score_rows import mean_and_interval
from strategies.exchange.exchange import Posted
from strategies.exchange.faults import fault, numbered
from strategies.exchange.guard import require_enough, update_bound
from strategies.split.audit import SplitAudit
from strategies.split.evaluation import evaluate, record_costs
from strategies.split.observations import EDGE, SERVER
from strategies.split.server import Holder, SplitServer, Tally
from strategies.training.checkpoint import Checkpoint
from strategies.training.evaluation import record_privacy

OPTIMIZER = "optimizer/"
"""Prefix of the server's optimizer state in a checkpoint."""


@dataclass(frozen=True)
class Schedule:
    """Learning rates of a run: each group falls from its own rate to its own floor along half a cosine over the rounds.

    ``head`` is that of what starts from nothing (head and adapter), ``blocks`` that of the transformer blocks in both halves,
    ``floor`` the last round's rate over the first's; in the paper 0.004 for both (2e-4 of 0.05, 2e-6 of 5e-4).
    """

    head: float
    blocks: float
    floor: float
    rounds: int

    def at(self, server_round: int) -> tuple[float, float]:
        """Rates of head and blocks in a round, from 1."""
        passed = (server_round - 1) / max(self.rounds - 1, 1)
        factor = self.floor + (1 - self.floor) * (1 + math.cos(math.pi * passed)) / 2
        return self.head * factor, self.blocks * factor


@dataclass
class _Progress:
    expected: int
    batches: int = 0
    examples: int = 0
    loss: float = 0.0


class SplitFed(SplitServer):
    """Train the server half on the clients' smashed data, and average the client halves.

    Args:
        holders: Partition -> the server's knowledge of the client's data.
        batches_per_message: K.
        attacks: Attacks on smashed data.
        attack_rounds: Attacked rounds; ``plan.rounds`` + 1 is the model after the last one.
        min_usable: Least share of requested clients with a usable reply at every step; the run stops below it.
    """

    def __init__(
        self,
        *,
        plan: SplitPlan,
        auditor: Auditor,
        holders: Mapping[int, Holder],
        schedule: Schedule,
        batches_per_message: int = 1,
        attacks: Iterable[SmashedAttack[Any]] = (),
        attack_rounds: Iterable[int] = (),
        min_usable: float = 0.5,
        label: str = "p00",
    ) -> None:
        super().__init__(plan, auditor, holders, batches_per_message, min_usable)
        self.schedule = schedule
        self.attack_rounds = frozenset(attack_rounds)
        fast = self.server.fast_parameters()
        slow = [p for p in self.server.parameters() if all(p is not other for other in fast)]
        self._sizes: dict[int, list[int]] = {}
        """Of the batches of the round that is being trained."""
        self.optimizer = build_optimizer(plan, [{"params": fast}, {"params": slow}])
        self._audit = SplitAudit(auditor, tuple(attacks), self.attack_rounds, label)

    def checkpoint(self, server_round: int) -> Checkpoint:
        """Both halves and the optimizer's state under flat names, on the CPU."""
        optimizer = under(OPTIMIZER, flat_state([self.optimizer]))
        return Checkpoint(server_round, self.weights() | optimizer, {}, self.accuracy)

    def restore(self, done: Checkpoint) -> None:
        """Resume from a checkpoint."""
        self.edge = part_of(done.weights, EDGE)
        load_weights(self.server, part_of(done.weights, SERVER))
        load_flat_state([self.optimizer], part_of(done.weights, OPTIMIZER))
        self.accuracy = done.accuracy

    def train_round(self, server_round: int) -> None:
        """Attack the round's model if it is to be attacked, train, and average trained client halves."""
        self.observe_model(server_round)
        task = self._task(server_round)
        for group, rate in zip(self.optimizer.param_groups, self.schedule.at(server_round), strict=True):
            group["lr"] = rate
        self.exchange.tally = Tally()
        self._sizes = {p: SplitPasses(task, holder.num_train).batches() for p, holder in self.holders.items()}
        self.server.train()
        progress, start = _Progress(sum(len(self._sizes[p]) for p in self.holders)), time.perf_counter()
        gradients = self._steps(task, progress)
        if self.plan.trains_edge:
            self._send_last(task, gradients)
            self._average(task)
        self._record(task, progress, time.perf_counter() - start)

    def observe_model(self, server_round: int) -> None:
        """Attack a round's model, if it is to be attacked; nothing is trained. ``TooFewReplies`` when too few clients answer."""
        self.auditor.collect()
        if server_round in self.attack_rounds:
            self._audit.observe(self._task(server_round), self)

    def evaluate_round(self, server_round: int) -> None:
        """Add rows of accuracy and correlation (before round 1 also of costs), and queue attacks on the evaluation's tokens."""
        task = self._task(server_round)
        if server_round == 0:
            record_costs(self.plan, self.auditor.recorder)
        self.accuracy = evaluate(task, self)

    def _task(self, server_round: int) -> Task:
        # Neither the initial nor the final model is trained: an audit's step on it is as long as the nearest round's.
        rate = self.schedule.at(min(max(server_round, 1), self.schedule.rounds))[1] if self.plan.trains_edge else 0.0
        return self.plan.at(server_round, rate)

    def _steps(self, task: Task, progress: _Progress) -> dict[int, RecordDict]:
        """All ``train.step`` messages of a round, in two waves; returns the gradients that were not sent yet."""
        partitions, count = list(self.holders), self.batches_per_message
        waves = [wave for wave in (partitions[0::2], partitions[1::2]) if wave]
        gradients: dict[int, RecordDict] = {}
        begun: set[int] = set()
        posted = [self._post(task, wave, 0, gradients, begun) for wave in waves]
        for first in range(0, max(len(self._sizes[p]) for p in partitions), count):
            failed: set[int] = set()
            for at, wave in enumerate(waves):
                replies = self.exchange.receive(task, posted[at], self._fault_in_batches(first), at_least=0.0)
                failed |= set(posted[at].contents) - set(replies)
                begun |= set(replies)
                gradients |= self._train_on(replies, progress, wanted=self.plan.trains_edge)
                posted[at] = self._post(task, wave, first + count, gradients, begun)
            # A client without batches left has not failed: the last client at work may miss a step without ending the run.
            standing = [partition for partition in partitions if partition not in failed]
            require_enough(task, "train.step", partitions, standing, self.exchange.min_usable)
        return gradients

    def _post(
        self, task: Task, wave: Sequence[int], first: int, gradients: dict[int, RecordDict], begun: set[int]
    ) -> Posted:
        """Order the batches from ``first`` of the clients in a wave; takes the gradients that it sends along."""
        travelling = any(holder.labels is None for holder in self.holders.values())
        config = self.exchange.config(
            task, first=first, count=self.batches_per_message, labels="client" if travelling else "server",
            applied=max(first - self.batches_per_message, 0),
        )  # fmt: skip
        contents = {}
        for partition in wave:
            if first < len(self._sizes[partition]):
                contents[partition] = RecordDict({"config": config, **gradients.pop(partition, {})})
                # Until a client has answered once in a round, it may not hold the weights to begin with.
                if self.plan.trains_edge and partition not in begun:
                    contents[partition]["edge"] = to_record(self.edge)
        return self.exchange.post("train.step", contents)

    def _fault_in_batches(self, first: int) -> Any:
        classes = self.plan.data_card().num_classes

        def fault_in(partition: int, reply: Message) -> str:
            sizes = self._sizes[partition][first : first + self.batches_per_message]
            if why := fault(reply, numbered([(size, *self.token_shape) for size in sizes]), "features"):
                return why
            labels = self.holders[partition].labels
            if labels is None:
                return fault(reply, numbered([(size, classes) for size in sizes]), "targets")
            if why := fault(reply, numbered([(size,) for size in sizes], dtype=np.int64), "examples"):
                return why
            named = torch.cat(list(tensors_of(reply, "examples").values()))
            inside = int(named.min()) >= 0 and int(named.max()) < len(labels)
            return "" if inside else f"examples: {named.min()} to {named.max()}, the client holds {len(labels)}"

        return fault_in

    def _train_on(self, good: Mapping[int, Message], progress: _Progress, *, wanted: bool) -> dict[int, RecordDict]:
        """One step of the server half for every batch: the first of every client, then the second, and so on."""
        columns = [[(p, *batch) for batch in self._batches(p, reply)] for p, reply in good.items()]
        gradients: dict[int, Tensors] = defaultdict(dict)
        for row in itertools.zip_longest(*columns):
            for partition, at, features, targets in filter(None, row):
                received = features.to(device()).requires_grad_(wanted)
                loss = self.plan.objective.loss(self.server(received), targets.to(device()))
                self.optimizer.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
                self.optimizer.step()
                progress.batches, progress.examples = progress.batches + 1, progress.examples + len(features)
                progress.loss += float(loss.detach()) * len(features)
                if received.grad is not None:
                    gradients[partition][at] = received.grad
        return {p: RecordDict({"gradients": to_record(theirs)}) for p, theirs in gradients.items()}

    def _batches(self, partition: int, reply: Message) -> list[tuple[str, Tensor, Tensor]]:
        features, labels = tensors_of(reply, "features"), self.holders[partition].labels
        if labels is None:
            targets = tensors_of(reply, "targets")
        else:
            classes = self.plan.data_card().num_classes
            named = tensors_of(reply, "examples")
            targets = {at: self.plan.objective.targets(labels[rows], classes) for at, rows in named.items()}
        return [(at, features[at], targets[at]) for at in sorted(features, key=int)]

    def _send_last(self, task: Task, gradients: Mapping[int, RecordDict]) -> None:
        contents = {}
        for partition, record in gradients.items():
            last = (len(self._sizes[partition]) - 1) // self.batches_per_message * self.batches_per_message
            contents[partition] = RecordDict({"config": self.exchange.config(task, applied=last), **record})
        if contents:
            self.exchange.ask(task, "train.backward", contents)

    def _average(self, task: Task) -> None:
        content = RecordDict({"config": self.exchange.config(task), "edge": to_record(self.edge)})
        reference = {name: tensor.numpy() for name, tensor in self.edge.items()}
        contents = dict.fromkeys(self.holders, content)
        self.exchange.bounds["train.collect"] = {"arrays": update_bound(self.edge)}
        good = self.exchange.ask(task, "train.collect", contents, lambda _, reply: fault(reply, reference))
        total = sum(self.holders[partition].num_train for partition in good)
        for partition, reply in good.items():
            share = self.holders[partition].num_train / total
            for name, delta in tensors_of(reply, "arrays").items():
                self.edge[name] = self.edge[name] + share * delta

    def _record(self, task: Task, progress: _Progress, seconds: float) -> None:
        row, tally, clients = self.auditor.recorder.row, self.exchange.tally, len(self.holders)
        row(task, metric=TRAIN_LOSS.name, value=progress.loss / max(progress.examples, 1), n=progress.examples)
        row(task, metric=CLIENTS_FAILED.name, value=len(tally.failed), n=clients)
        row(task, metric=BATCHES_LOST.name, value=progress.expected - progress.batches, n=progress.expected)
        row(task, metric=TRAIN_SECONDS.name, **mean_and_interval(list(tally.seconds.values())))
        row(task, metric=UPDATE_BYTES.name, **mean_and_interval([float(sent) for sent in tally.sent.values()]))
        self._record_privacy(task)
        row(task, metric=SAMPLES_PER_SECOND.name, value=progress.examples / seconds, n=progress.examples)
        row(task, metric=BYTES_PER_SAMPLE.name, value=4.0 * math.prod(self.token_shape), n=progress.examples)

    def _record_privacy(self, task: Task) -> None:
        """The budgets of the example that was sent most often, by training or evaluation, and with the audits."""
        evaluated = task.round + 1  # a test image goes out behind every round, round 0 and this one included
        sent, probed = [evaluated], [evaluated]
        for holder in self.holders.values():
            trained = len(SplitPasses(task, holder.num_train).within(1, task.round))
            more = self._audit.extra_transmissions(task, holder.num_train)
            sent.append(trained)
            probed.append((evaluated if task.plan.auxiliary_data == "private" else trained) + more)
        record_privacy(task, self.auditor.recorder, max(sent), {EPSILON_WITH_PROBES: max(sent + probed)})
