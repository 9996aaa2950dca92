"""Answering the clients' queries: what is asked in bounded messages, what is checked, and what it costs."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from flwr.app import Message, RecordDict
from torch import Tensor

from attacks.local_model import shared_tensors
from attacks.query_sender import QuerySender
from clients.inference.plan import CutModel
from clients.task.task import Task
from clients.training.evaluation import device
from clients.wire.records import tensors_of, to_record, values_of
from defenses.pipeline import Pipeline
from strategies.audit.score_rows import mean_and_interval
from strategies.exchange.guard import Answers, FaultIn, GuardedExchange, Rows, fault, require_enough


@dataclass
class Served:
    """One client's queries.

    Attributes:
        latents: What travelled, by batch.
        answers: The server half's logits (B, K), by batch.
        seconds: Of the client's work.
    """

    latents: list[Tensor] = field(default_factory=list)
    answers: list[Tensor] = field(default_factory=list)
    seconds: float = 0.0


class Service:
    """All queries of one pipeline.

    Args:
        exchange: Asks clients, and lets only usable replies through.
        task: Orders of the round.
        model: The trained model in two halves.
        pipeline: The clients' defences, fitted.
        work: Partition -> the batches that the client has to ask.
        batches_per_message: Of them in one message.
    """

    def __init__(
        self,
        exchange: GuardedExchange,
        task: Task,
        model: CutModel,
        pipeline: Pipeline,
        work: Mapping[int, list[Tensor]],
        batches_per_message: int,
    ) -> None:
        self.exchange, self.task, self.model, self.work = exchange, task, model, dict(work)
        self.batches_per_message = batches_per_message
        card = task.plan.data_card()
        self.sender = QuerySender(model.client, pipeline, card.mean, card.std)
        self.whole = set(work)
        """Partitions that have failed in nothing so far."""
        self.served: dict[int, Served] = {}
        self.seconds = 0.0
        """Of the server's work."""
        self._client = to_record(shared_tensors(model.client))
        self._learned, self.version = to_record(pipeline.state()), pipeline.version
        with torch.no_grad():
            blank = torch.zeros(1, *card.input_shape, device=device())
            self._feature_shape = self.sender.features(blank).shape[1:]
            self._latent_shape = self.sender.latent(blank, ("shape",)).shape[1:]

    def run(self) -> dict[int, Served]:
        """Asks every client for its queries; one that fails is asked no more, and what it has sent is kept.

        Raises:
            TooFewReplies: When too few clients ask all that they have.
        """
        refused = set[int]()
        for first in range(0, max(map(len, self.work.values())), self.batches_per_message):
            replies = self._next_message(first)
            refused.update(replies.refused)
            # The share is of all clients: the last messages may be for a single one, whose rest is all that its failure costs.
            others = sorted(set(self.work) - refused)
            require_enough(self.task, "query.features", others, sorted(self.whole), self.exchange.min_usable)
            for partition, reply in replies.items():
                self._answer(partition, reply)
        return self.served

    def _next_message(self, first: int) -> Answers:
        """Asks those that have failed in nothing so far for their batches from ``first`` on."""
        asked = [p for p, batches in self.work.items() if p in self.whole and first < len(batches)]
        config = self.exchange.config(self.task, first=first, count=self.batches_per_message, version=self.version)
        content: dict[str, Any] = {"config": config, "client": self._client, "learned": self._learned}
        posted = self.exchange.post("query.features", {partition: RecordDict(content) for partition in asked})
        at_least = None if first == 0 else 0.0
        replies = self.exchange.receive(self.task, posted, self._fault_in(first), at_least=at_least)
        self.whole -= set(asked) - set(replies)
        return replies

    def _fault_in(self, first: int) -> FaultIn:
        def fault_in(partition: int, reply: Message) -> str:
            sizes = [len(batch) for batch in self.work[partition][first : first + self.batches_per_message]]
            expected = {
                str(first + at): np.broadcast_to(np.float32(0), (size, *self._latent_shape))
                for at, size in enumerate(sizes)
            }
            return fault(reply, expected, "features")

        return fault_in

    def _answer(self, partition: int, reply: Message) -> None:
        mine, sent = self.served.setdefault(partition, Served()), tensors_of(reply, "features")
        start = time.perf_counter()
        with torch.no_grad():
            for name in sorted(sent, key=int):
                mine.latents.append(sent[name])
                mine.answers.append(self.model.server(self.sender.decoded(sent[name].to(device()))).cpu())
        self.seconds += time.perf_counter() - start
        told = values_of(reply, "metrics").get("query-seconds")
        mine.seconds += told if isinstance(told, int | float) else 0.0

    def answers(self) -> dict[int, Tensor]:
        """Partition -> logits of all its queries; of those that asked all: a part would be scored as if it were the whole."""
        return {
            partition: torch.cat(mine.answers) for partition, mine in self.served.items() if partition in self.whole
        }

    def record(self, rows: Rows) -> None:
        """Rows of counts, bytes and seconds: "queries", bytes of one query as it travels and as plain features, of its answer, and
        of the client half with what its defences have learned, which a device is given once; the
        row of these names the version of what was learned.
        """
        plan = self.task.plan
        numbers = {
            "query-bytes": 4 * self._latent_shape.numel(),
            "feature-bytes": 4 * self._feature_shape.numel(),
            "answer-bytes": 4 * plan.data_card().num_classes,
            "client-half-bytes": sum(
                tensor.nbytes
                for tensors in (shared_tensors(self.model.client), self.sender.pipeline.state())
                for tensor in tensors.values()
            ),
            "answer-seconds": self.seconds,
        }
        rows.row(self.task, metric="clients-failed", value=len(self.work) - len(self.whole), n=len(self.work))
        asked = sum(len(latent) for mine in self.served.values() for latent in mine.latents)
        rows.row(self.task, metric="queries", value=asked, n=len(self.served))
        rows.row(self.task, metric="query-seconds", **mean_and_interval([one.seconds for one in self.served.values()]))
        for metric, value in numbers.items():
            told = {"version": self.version} if metric == "client-half-bytes" and self.version else {}
            rows.row(self.task, metric=metric, value=float(value), n=asked, **told)
