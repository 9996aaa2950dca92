"""The server of edge-cloud inference: train the model, fit the defences, answer queries, and run attacks on them."""

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from flwr.app import RecordDict
from torch import Tensor, nn

from attacks.base import AnyAttack
from attacks.local_model import shared_tensors
from attacks.metrics.training import ANSWERED, EPSILON_ALL_CUTS, OFFLINE_ADVERSARY_ACCURACY, SERVER_SECONDS, TRAIN_LOSS
from attacks.normalisation import normalise
from attacks.observations import AttackError
from clients.inference.plan import CutModel, InferencePlan
from clients.task.batches import chunks
from clients.task.task import Task
from clients.training.evaluation import CLEAN_ACCURACY, device
from clients.wire.records import to_record
from defenses.base import DefenseError
from defenses.fitting import FitContext
from defenses.pipeline import Pipeline
from defenses.tensors import part_of, under
from strategies.audit.auditor import Auditor
from strategies.audit.jobs import FIT, grouped
from strategies.audit.kinds import Kind
from strategies.audit.majority import attack_judged
from strategies.audit.score_rows import share_and_interval
from strategies.audit.threat_card import KnownLabels
from strategies.exchange.guard import GuardedExchange
from strategies.inference.mask_pictures import picture_masks
from strategies.inference.observations import ATTRIBUTE, DEFENSES, MODEL, QUERY, SeenQuery
from strategies.inference.offline_adversary import OfflineAdversaries
from strategies.inference.public_model import PublicTraining
from strategies.inference.service import Served, Service
from strategies.training.checkpoint import Checkpoint
from strategies.training.evaluation import record_privacy, record_reports

log = logging.getLogger("flwr")

OFFLINE = "offline-adversary/"
"""Prefix of what a checkpoint keeps of the offline adversaries."""
SHARES = tuple(metric.name for metric in ANSWERED)
"""What clients report of the answers besides the model's accuracy."""


@dataclass(eq=False)
class InferenceServer:
    """Serve one pipeline's queries; it has a short ``label`` in file names.

    Attributes:
        training: Of the whole model; one for all pipelines of the run.
        adversaries: For the defences that need one; likewise one for all pipelines.
        sizes: Partition -> test examples of the client, each of which is a query.
        attacked: Whether the queries are attacked.
        min_usable: Share of the clients that must ask usably, or the run stops.
        accuracy: Of the whole model on clean test images, as the clients report it; None before queries are answered.
    """

    plan: InferencePlan
    auditor: Auditor
    training: PublicTraining
    adversaries: OfflineAdversaries
    sizes: Mapping[int, int]
    attacks: Mapping[Kind, Sequence[AnyAttack]]
    attacked: bool
    min_usable: float
    batches_per_message: int
    label: str

    def __post_init__(self) -> None:
        self.sizes = dict(sorted(self.sizes.items()))
        self.accuracy: float | None = None

    def train_round(self, server_round: int) -> None:
        """Trains the whole model on the server's own images, unless it is from a file."""
        task = self.plan.at(server_round)
        if (trained := self.training.run_round(task)) is None:
            return
        loss, seconds = trained
        row = self.auditor.recorder.row
        row(task, metric=TRAIN_LOSS.name, value=loss, n=len(self.training.own))
        row(task, metric=SERVER_SECONDS.name, value=seconds)

    def evaluate_round(self, server_round: int) -> None:
        """Do nothing: clients report the model's accuracy with the answers to their queries."""

    def observe_model(self, server_round: int) -> None:
        """Run one phase of service: fit the defences, answer all queries of every client once, and attack the queries.

        Each cut is a separate deployment: attacks ignore messages at other cuts. There are two budgets: "epsilon" for an
        image's messages at this cut, and "epsilon-all-cuts" for those at all cuts so far, the total for a person. If a defence
        cannot learn, clients send nothing at this cut, and a failed row "fit" gives the reason.

        Raises:
            TooFewReplies: When too few clients ask all that they have.
        """
        self.auditor.collect()
        start = time.perf_counter()
        task, cut = self.plan.at(server_round), self.plan.cut_of(server_round)
        model, rows = self.plan.build_cut(cut, self.training.weights()), self.auditor.recorder
        try:
            pipeline = self.fitted(task, model)
        except (AttackError, DefenseError) as error:
            # Other pipelines can still be served, and this one after a resume would fail the same way.
            why = f"{type(error).__name__}: {error}"
            rows.row(task, metric=FIT, value=None, status="failed", message=why)
            log.warning("fedveil: cut %s | nothing is served, as %s cannot be fitted: %s", cut, self.plan.pipeline, why)
            return
        fitted = time.perf_counter()
        work = {partition: chunks(size, self.plan.batch_size) for partition, size in self.sizes.items()}
        exchange = GuardedExchange(self.auditor.exchange, rows, self.min_usable)
        service = Service(exchange, task, model, pipeline, work, self.batches_per_message)
        served = service.run()
        service.record(rows)
        record_privacy(task, rows, 1, {EPSILON_ALL_CUTS: self.plan.phase_of(server_round)})
        self._evaluate(exchange, task, model, service.answers())
        answered = time.perf_counter()
        if self.attacked:
            self._attack(task, pipeline, QUERY, self._attacked(served))
            self._attack(task, pipeline, ATTRIBUTE, self._whole(served))
        log.info(
            "fedveil: cut %s | fitted in %.1f s, answered in %.1f s, attacks handed over in %.1f s",
            cut, fitted - start, answered - fitted, time.perf_counter() - answered,
        )  # fmt: skip

    def fitted(self, task: Task, model: CutModel) -> Pipeline:
        """The pipeline after its fit to the server's own images, if anything in it learns. Draws the masks of a delta autoencoder.

        Raises:
            AttackError: When a defence needs an adversary, and there is nothing to train one on.
            DefenseError: When a defence cannot learn from these features, with the reason.
        """
        pipeline = self.plan.defenses
        if pipeline.fitted:
            return pipeline
        card, key = self.plan.data_card(), ("fit", self.plan.seed)
        shown = pipeline.protect_test(self.training.own.batch, key)
        context = FitContext(
            client=model.client,
            server=model.server,
            adversary=self._adversary(task, model) if pipeline.needs_adversary else None,
            images=normalise(shown.images, card),
            labels=shown.targets.argmax(1),
            black=normalise(torch.zeros(1, *card.input_shape), card)[0, :, 0, 0],
        )
        fitted = pipeline.fit(context, key)
        picture_masks(fitted, context, key, self.plan.cut_of(task.round), task, self.auditor.recorder)
        return fitted

    def _adversary(self, task: Task, model: CutModel) -> nn.Module:
        """The offline adversary at the task's cut, with a row of what it is worth."""
        kept = self.adversaries.at(self.plan.cut_of(task.round), self.plan, model, self.training.own)
        self.auditor.recorder.row(
            task, metric=OFFLINE_ADVERSARY_ACCURACY.name, majority=kept.majority, architecture=self.adversaries.architecture,
            **share_and_interval([1.0] * round(kept.accuracy * kept.held) + [0.0] * round((1 - kept.accuracy) * kept.held)),
        )  # fmt: skip
        return kept.network.to(device())

    def _attacked(self, served: Mapping[int, Served]) -> list[SeenQuery]:
        """The attacked images of each client: the first ones of its first batches; none where some of these never came."""
        count, queries = self.plan.probe_images, []
        for partition, mine in served.items():
            if len(mine.latents) >= self.plan.probe_targets:
                latents = [latent[:count] for latent in mine.latents[: self.plan.probe_targets]]
                queries += [SeenQuery(partition, at, len(latent), latent) for at, latent in enumerate(latents)]
        return queries

    def _whole(self, served: Mapping[int, Served]) -> list[SeenQuery]:
        """The queries of each client whose attribute is guessed, in one; none where some of these never came."""
        queries = []
        for partition, mine in served.items():
            count, latents = self.sizes[partition], torch.cat(mine.latents)
            if self.attacks[ATTRIBUTE] and len(latents) >= count:
                queries.append(SeenQuery(partition, 0, count, latents[:count]))
        return queries

    def _evaluate(self, exchange: GuardedExchange, task: Task, model: CutModel, answers: Mapping[int, Tensor]) -> None:
        """Send predictions to the clients that sent all queries, and record means over their test examples."""
        whole = to_record(shared_tensors(model.whole))
        contents = {
            partition: RecordDict(
                {"config": exchange.config(task), "answers": to_record({"0": logits}), "arrays": whole}
            )
            for partition, logits in answers.items()
        }
        means = record_reports(exchange, task, [*contents], exchange.exchange("evaluate", contents), SHARES)
        self.accuracy = means.get(CLEAN_ACCURACY, self.accuracy)

    def checkpoint(self, server_round: int) -> Checkpoint:
        """State that later phases depend on, without sent data: open attacks keep their own."""
        offline = under(OFFLINE, self.adversaries.tensors())
        return Checkpoint(server_round, self.training.tensors() | offline, {}, self.accuracy)

    def restore(self, done: Checkpoint) -> None:
        """Resume from a checkpoint."""
        self.training.restore(done.weights)
        self.adversaries.restore(part_of(done.weights, OFFLINE))
        self.accuracy = done.accuracy

    def _attack(self, task: Task, pipeline: Pipeline, kind: Kind, seen: list[SeenQuery]) -> None:
        if not (self.attacks[kind] and seen):
            return
        sensitive = self.training.own.sensitive
        # Below one half, a guess of two values is worth as much as its opposite.
        values = {"attribute_values": int(sensitive.max()) + 1} if kind is ATTRIBUTE and sensitive is not None else {}
        card = self.auditor.card(
            task,
            kind,
            seen,
            self.accuracy,
            labels=KnownLabels.UNKNOWN,
            transmissions=1,
            client_half="known: the server has the whole model",
            answers="known: the server gave them",
            **values,
        )
        known = under(MODEL, self.training.weights()) | under(DEFENSES, pipeline.state())
        # All attacks on attributes are one piece of work: what they see is large, and kept in a file until they are done.
        groups = [tuple(self.attacks[kind])] if kind is ATTRIBUTE else grouped(self.attacks[kind])[0]
        attack_judged(self.auditor, task, kind, known, seen, card, groups, self.label)
