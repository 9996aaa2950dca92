"""Service for the clients' queries: bounded messages, checks, and costs."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from flwr.app import Message
from torch import Tensor

from attacks.local_model import shared_tensors
from attacks.metrics.training import (
    ANSWER_BYTES,
    ANSWER_SECONDS,
    CLIENT_HALF_BYTES,
    CLIENTS_FAILED,
    FEATURE_BYTES,
    QUERIES,
    QUERY_BYTES,
    QUERY_SECONDS,
)
from attacks.sender import Sender
from clients.inference.plan import CutModel
from clients.task.task import Task
from clients.training.evaluation import device
from clients.wire.records import tensors_of, to_record
from defenses.pipeline import Pipeline
from strategies.audit.score_rows import mean_and_interval
from strategies.exchange.collection import BatchCollection
from strategies.exchange.columns import Columns
from strategies.exchange.faults import seconds_of
from strategies.exchange.guard import FAR, Bound, GuardedExchange, Rows


@dataclass
class Served:
    """One client's queries: sent features and logits (B, K) of the server half by batch, and seconds of the client's work."""

    latents: list[Tensor] = field(default_factory=list)
    answers: list[Tensor] = field(default_factory=list)
    seconds: float = 0.0


class Service:
    """All queries of one pipeline: ``work`` are each client's batches, and ``pipeline`` is fitted."""

    def __init__(
        self, exchange: GuardedExchange, task: Task, model: CutModel, pipeline: Pipeline, work: Mapping[int, list[Tensor]],
        batches_per_message: int,
    ) -> None:  # fmt: skip
        self.task, self.model, self.num_clients = task, model, len(work)
        self.collection = BatchCollection(exchange, task, "query.features", work, batches_per_message)
        card = task.plan.data_card()
        self.sender = Sender(model.client, pipeline, card.mean, card.std)
        self.served: dict[int, Served] = {}
        self.seconds = 0.0
        """Of the server's work."""
        self._records = {"client": to_record(shared_tensors(model.client)), "learned": to_record(pipeline.state())}
        self.version = pipeline.version
        with torch.no_grad():
            blank = torch.zeros(1, *card.input_shape, device=device())
            latent = self.sender.latent(blank, ("shape",))
            self._feature_shape, self._latent_shape = self.sender.features(blank).shape[1:], latent.shape[1:]
        size = FAR * max(1.0, float(latent.double().square().mean().sqrt()))
        exchange.bounds["query.features"] = {"features": Bound(size, size)}

    def run(self) -> dict[int, Served]:
        """Request every client's queries; a client that fails gets no further request, and its earlier replies are kept."""
        shapes = {"features": tuple(self._latent_shape)}
        for partition, reply in self.collection.replies(shapes, self._records, version=self.version):
            self._answer(partition, reply)
        return self.served

    def _answer(self, partition: int, reply: Message) -> None:
        mine, sent = self.served.setdefault(partition, Served()), tensors_of(reply, "features")
        start = time.perf_counter()
        with torch.no_grad():
            for name in sorted(sent, key=int):
                mine.latents.append(sent[name])
                mine.answers.append(
                    self.model.server(self.sender.pipeline.decode_features(sent[name].to(device()))).cpu()
                )
        self.seconds += time.perf_counter() - start
        mine.seconds += seconds_of(reply, QUERY_SECONDS.name)

    def answers(self) -> dict[int, Tensor]:
        """Partition -> logits of all its queries, for clients that sent all: a part would be scored as if it were the whole."""
        whole = self.collection.whole
        return {partition: torch.cat(mine.answers) for partition, mine in self.served.items() if partition in whole}

    def record(self, rows: Rows) -> None:
        """Add rows of counts, seconds and bytes: of queries (as plain features too), answers, and one-time downloads."""
        numbers = {
            QUERY_BYTES: 4 * self._latent_shape.numel(),
            FEATURE_BYTES: 4 * self._feature_shape.numel(),
            ANSWER_BYTES: 4 * self.task.plan.data_card().num_classes,
            CLIENT_HALF_BYTES: sum(
                tensor.nbytes
                for tensors in (shared_tensors(self.model.client), self.sender.pipeline.state())
                for tensor in tensors.values()
            ),
            ANSWER_SECONDS: self.seconds,
        }
        failed = self.num_clients - len(self.collection.whole)
        rows.row(self.task, metric=CLIENTS_FAILED.name, value=failed, n=self.num_clients)
        queries = sum(len(latent) for mine in self.served.values() for latent in mine.latents)
        rows.row(self.task, metric=QUERIES.name, value=queries, n=len(self.served))
        rows.row(
            self.task, metric=QUERY_SECONDS.name, **mean_and_interval([mine.seconds for mine in self.served.values()])
        )
        for metric, value in numbers.items():
            columns: Columns = {"n": queries}
            if metric is CLIENT_HALF_BYTES and self.version:
                columns["version"] = self.version
            rows.row(self.task, metric=metric.name, value=float(value), **columns)
