"""The server of edge-cloud inference: trains the model, fits what defences learn, answers queries, and lets attacks at them."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from flwr.app import RecordDict
from torch import Tensor

from attacks.base import Attack
from attacks.local_model import shared_tensors
from attacks.normalisation import normalise
from clients.inference.plan import CutModel, InferencePlan
from clients.local_data import chunks
from clients.records import to_record
from clients.task import Task
from defenses.fitting import FitContext
from defenses.pipeline import Pipeline
from strategies.audit.auditor import Auditor
from strategies.audit.jobs import AttackJob, grouped
from strategies.audit.kinds import Kind, Observed, part_of
from strategies.audit.threat_card import KnownLabels
from strategies.evaluation import fault_in_report, record_reports
from strategies.guard import GuardedExchange
from strategies.inference.fit_path import fit_with_path
from strategies.inference.loaded_model import LoadedModel
from strategies.inference.mask_pictures import picture_masks
from strategies.inference.observations import DEFENSES, MODEL, QUERY, SeenQuery
from strategies.inference.public_training import PublicTraining
from strategies.inference.service import Served, Service
from strategies.smashed_privacy import record_privacy

QUERIES = "queries/"
"""Prefix of what a checkpoint keeps of attacked queries."""
AGREEMENT = "agreement"
"""Share of test images whose answer is the one that the unprotected features get, as clients report it."""


class InferenceServer:
    """Serves one pipeline's queries.

    Args:
        plan: What the run fixes.
        auditor: Queues attacks and has them scored.
        training: Of the whole model, or the model itself; one for all pipelines of the run.
        sizes: Partition -> test examples of the client, each of which is a query.
        attacks: Kind of observation -> attacks on it.
        attacked: Whether the queries are attacked.
        min_usable: Share of the clients that must ask usably, or the run stops.
        batches_per_message: Batches of queries in one message.
        label: Short name of the pipeline for file names.
    """

    def __init__(
        self,
        plan: InferencePlan,
        auditor: Auditor,
        training: PublicTraining | LoadedModel,
        sizes: Mapping[int, int],
        attacks: Mapping[Kind, Iterable[Attack[Any, Any]]],
        attacked: bool,
        min_usable: float,
        batches_per_message: int,
        label: str,
    ) -> None:
        self.plan, self.auditor, self.training, self.label = plan, auditor, training, label
        self.sizes = dict(sorted(sizes.items()))
        self.attacks = {kind: tuple(chosen) for kind, chosen in attacks.items()}
        self.attacked = attacked
        self.exchange = GuardedExchange(auditor.exchange, auditor.recorder, min_usable)
        self.batches_per_message = batches_per_message
        self.accuracy: float | None = None
        """Of the whole model on clean test images, as the clients report it; None before queries are answered."""
        self.pipeline = plan.defenses()
        """The defences; those that learn are fitted before the first query."""
        self.seen: list[SeenQuery] = []
        """The attacked queries that came."""

    # Phases -------------------------------------------------------------------------------------------------------------

    def train_round(self, server_round: int) -> None:
        """Trains the whole model on the server's own images, unless it is from a file."""
        task = self.plan.at(server_round)
        if (trained := self.training.run_round(task)) is None:
            return
        loss, seconds = trained
        row = self.auditor.recorder.row
        row(task, metric="train-loss", value=loss, n=len(self.training.examples()))
        row(task, metric="server-seconds", value=seconds)

    def serve(self, server_round: int) -> None:
        """Fits what defences learn, then has every client ask all that it has, once, and answers.

        Raises:
            TooFewReplies: When too few clients ask all that they have.
        """
        self.auditor.collect()
        task, model = self.plan.at(server_round), self.plan.build_cut(self.training.weights())
        self.pipeline = self.fitted(task, model)
        work = {partition: chunks(size, self.plan.batch_size) for partition, size in self.sizes.items()}
        service = Service(self.exchange, task, model, self.pipeline, work, self.batches_per_message)
        self.seen = self._attacked(service.run())
        service.record(self.auditor.recorder)
        record_privacy(task, self.auditor.recorder, 1, 1)
        self._evaluate(task, model, service.answers())

    def fitted(self, task: Task, model: CutModel) -> Pipeline:
        """The pipeline after what learns has learned, from the server's own images; itself where nothing does.

        Leaves rows and pictures of how it learned.

        Raises:
            DefenseError: When a defence cannot learn from these features, with the reason.
        """
        if self.pipeline.fitted:
            return self.pipeline
        card, key = self.plan.data_card(), ("fit", self.plan.seed)
        shown = self.pipeline.protect_test(self.training.examples(), key)
        context = FitContext(
            client=model.client,
            server=model.server,
            adversary=None,
            images=normalise(shown.images, card),
            labels=shown.targets.argmax(1),
            black=normalise(torch.zeros(1, *card.input_shape), card)[0, :, 0, 0],
        )
        recorder, cut = self.auditor.recorder, self.plan.cut_name
        picture_masks(self.pipeline, context, cut, task, recorder)
        return fit_with_path(self.pipeline, context, key, model, cut, self.training.own, task, recorder)

    def _attacked(self, served: Mapping[int, Served]) -> list[SeenQuery]:
        """The attacked images of each client: the first ones of its first batches; none where some of these never came."""
        count, found = self.plan.probe_images, []
        for partition, one in served.items():
            if len(one.latents) >= self.plan.probe_targets:
                latents = [latent[:count] for latent in one.latents[: self.plan.probe_targets]]
                found += [SeenQuery(partition, at, len(latent), latent) for at, latent in enumerate(latents)]
        return found

    def _evaluate(self, task: Task, model: CutModel, answers: Mapping[int, Tensor]) -> None:
        """Sends the answers to who asked all that it has; means over their test examples, and a row for each."""
        whole = to_record(shared_tensors(model.whole))
        contents = {
            partition: RecordDict(
                {"config": self.exchange.config(task), "answers": to_record({"0": logits}), "arrays": whole}
            )
            for partition, logits in answers.items()
        }
        posted = self.exchange.post("evaluate", contents)
        fault = functools.partial(fault_in_report, shares=(AGREEMENT,))
        good = self.exchange.receive(task, posted, fault, at_least=0.0)
        means = record_reports(task, good, self.auditor.recorder, (AGREEMENT,))
        self.accuracy = means.get("test-accuracy-original", self.accuracy)

    # What is kept -------------------------------------------------------------------------------------------------------

    def tensors(self) -> dict[str, Tensor]:
        """All that later rounds depend on."""
        learned = {DEFENSES + name: tensor for name, tensor in self.pipeline.state().items()}
        queries = {f"{QUERIES}{seen.partition}/{seen.target}": seen.latent for seen in self.seen}
        return self.training.tensors() | learned | queries

    def restore(self, tensors: Mapping[str, Tensor], accuracy: float | None) -> None:
        """Goes on from what ``tensors`` gave; nobody asks anything again."""
        self.training.restore(tensors)
        self.pipeline = self.pipeline.with_state(part_of(tensors, DEFENSES))
        for name, latent in part_of(tensors, QUERIES).items():
            partition, target = map(int, name.split("/"))
            self.seen.append(SeenQuery(partition, target, len(latent), latent))
        self.seen.sort(key=lambda seen: (seen.partition, seen.target))
        self.accuracy = accuracy

    # Attacks ------------------------------------------------------------------------------------------------------------

    def observe_queries(self, server_round: int) -> None:
        """Attacks the queries that were answered."""
        self.auditor.collect()
        if not (self.attacked and self.attacks[QUERY] and self.seen):
            return
        task, weights = self.plan.at(server_round), self.training.weights()
        card = self.auditor.card(
            task,
            QUERY,
            self.seen,
            self.accuracy,
            labels=KnownLabels.UNKNOWN,
            cut=self.plan.cut_name,
            transmissions=1,
            client_half="known: the server has the whole model",
            answers="known: the server gave them",
        )
        judges = self.auditor.baselines(task, QUERY, sorted({one.partition for one in self.seen}), card)
        seen = [one for one in self.seen if one.partition in judges]
        if not seen:
            return
        known = {MODEL + name: t for name, t in weights.items()}
        observed = Observed(task, known | {DEFENSES + name: t for name, t in self.pipeline.state().items()}, seen)
        at_once, _ = grouped(self.attacks[QUERY])
        for at, group in enumerate(at_once):
            name = f"{self.label}-r{task.round:04d}-{QUERY.name}-{at:02d}"
            self.auditor.submit(AttackJob(name, group, QUERY, observed, card))
