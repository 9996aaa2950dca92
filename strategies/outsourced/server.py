"""The server of outsourced training: collect the clients' uploads, train on them, and run attacks on them."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from flwr.app import RecordDict

from attacks.base import AnyAttack
from attacks.metrics.training import (
    CLIENTS_FAILED,
    SERVER_SECONDS,
    TRAIN_LOSS,
    UPLOAD_BYTES,
    UPLOAD_SECONDS,
    UPLOADED_IMAGES,
)
from clients.outsourced.messages import UPLOAD_ROUND, OutsourcedPlan
from clients.task.batches import chunks, join
from clients.task.task import Task
from clients.training.evaluation import CLEAN_ACCURACY
from clients.wire.records import tensors_of, to_record
from defenses.base import Batch
from defenses.tensors import Tensors, part_of
from strategies.audit.auditor import Auditor
from strategies.audit.jobs import grouped
from strategies.audit.kinds import Kind, Seen
from strategies.audit.majority import attack_judged
from strategies.audit.score_rows import mean_and_interval
from strategies.audit.threat_card import KnownLabels, ThreatCard
from strategies.exchange.collection import BatchCollection
from strategies.exchange.faults import seconds_of
from strategies.exchange.guard import FAR, Bound, GuardedExchange, TooFewReplies
from strategies.outsourced.observations import COLLECTION, MODEL, UPLOAD, SeenCollection, SeenUpload
from strategies.training.central_training import CentralTraining
from strategies.training.checkpoint import Checkpoint
from strategies.training.evaluation import record_reports

UPLOADS, WHOLE = "uploads/", "whole/"
"""Prefixes of what a checkpoint keeps beside the training: batches, and the seconds of who uploaded all that they have."""


@dataclass(eq=False)
class OutsourcedServer:
    """Train one pipeline's model, which has a short ``label`` in file names.

    Attributes:
        sizes: Partition -> training examples of the client.
        attack_rounds: Attacked rounds; ``plan.rounds`` + 1 is the model after the last one.
        min_usable: Share of the clients that must answer usably, or the run stops.
        accuracy: Of the current model on clean test images.
        uploads: Partition -> the batches of its upload.
        whole: Partitions that have uploaded all that they have.
    """

    plan: OutsourcedPlan
    auditor: Auditor
    sizes: Mapping[int, int]
    attacks: Mapping[Kind, Sequence[AnyAttack]]
    attack_rounds: Iterable[int]
    min_usable: float
    batches_per_message: int
    label: str

    def __post_init__(self) -> None:
        self.sizes, self.attack_rounds = dict(sorted(self.sizes.items())), frozenset(self.attack_rounds)
        self.exchange = GuardedExchange(self.auditor.exchange, self.auditor.recorder, self.min_usable)
        self.accuracy: float | None = None
        self.uploads: dict[int, list[Batch]] = {}
        self.whole: set[int] = set()
        self._seconds = dict.fromkeys(self.sizes, 0.0)
        """Partition -> seconds of work for its upload."""
        self._training: CentralTraining | None = None

    def collect(self) -> None:
        """Request every client's upload; a client that fails gets no further request, and its earlier replies are used."""
        task = self.plan.at(UPLOAD_ROUND)
        work = {
            partition: self.plan.upload_passes * chunks(size, self.plan.batch_size)
            for partition, size in self.sizes.items()
        }
        card = self.plan.data_card()
        bounds = {
            "images": Bound(FAR, FAR),
            "targets": Bound(1.0, 1.0, fixed=1.0),
        }  # of images and probabilities in [0, 1]
        self.exchange.bounds["train.upload"] = bounds
        collection = BatchCollection(self.exchange, task, "train.upload", work, self.batches_per_message)
        self.whole = collection.whole
        for partition, reply in collection.replies({"images": card.input_shape, "targets": (card.num_classes,)}, {}):
            images, targets = tensors_of(reply, "images"), tensors_of(reply, "targets")
            mine = self.uploads.setdefault(partition, [])
            mine += [Batch(images[name], targets[name]) for name in sorted(images, key=int)]
            self._seconds[partition] += seconds_of(reply, "train-seconds")
        if not self.uploads:
            raise TooFewReplies(f"{self.plan.pipeline or 'no defence'}: no client uploaded anything")
        self._begin()

    def _begin(self) -> None:
        """Makes one set of examples of all uploads, which from then on are views of it."""
        order = sorted(self.uploads)
        examples = join([batch for partition in order for batch in self.uploads[partition]])
        sizes = [len(batch) for partition in order for batch in self.uploads[partition]]
        images, targets = torch.split(examples.images, sizes), torch.split(examples.targets, sizes)
        pieces = (Batch(*pair) for pair in zip(images, targets, strict=True))
        self.uploads = {partition: [next(pieces) for _ in self.uploads[partition]] for partition in order}
        self._training = CentralTraining(self.plan, examples, ("outsourced", self.plan.seed))

    def _record_uploads(self, task: Task) -> None:
        row = self.auditor.recorder.row
        sent = [sum(b.images.nbytes + b.targets.nbytes for b in mine) for mine in self.uploads.values()]
        row(task, metric=CLIENTS_FAILED.name, value=len(self.sizes) - len(self.whole), n=len(self.sizes))
        row(task, metric=UPLOAD_BYTES.name, **mean_and_interval([float(size) for size in sent]))
        row(task, metric=UPLOAD_SECONDS.name, **mean_and_interval([self._seconds[p] for p in self.uploads]))
        images = sum(len(batch) for mine in self.uploads.values() for batch in mine)
        row(task, metric=UPLOADED_IMAGES.name, value=images, n=len(self.uploads))

    @property
    def training(self) -> CentralTraining:
        """The training on the uploads; collects them first."""
        if self._training is None:
            self.collect()
        assert self._training is not None
        return self._training

    def checkpoint(self, server_round: int) -> Checkpoint:
        """The model with its optimizer, and the uploads; collects these first."""
        return Checkpoint(server_round, self.training.tensors(), {}, self.accuracy, self._uploaded())

    def _uploaded(self) -> Tensors:
        """The uploads, which never change: they are under draws that a node makes once; views of what the server holds."""
        sent = {
            f"{UPLOADS}{partition}/{at}/{name}": tensor
            for partition, mine in self.uploads.items()
            for at, batch in enumerate(mine)
            for name, tensor in (("images", batch.images), ("targets", batch.targets))
        }
        return sent | {f"{WHOLE}{p}": torch.tensor([self._seconds[p]], dtype=torch.float64) for p in self.whole}

    def restore(self, done: Checkpoint) -> None:
        """Resume from a checkpoint; no client uploads again."""
        sent: dict[int, dict[int, Tensors]] = {}
        for name, tensor in part_of(done.fixed, UPLOADS).items():
            partition, at, kind = name.split("/")
            sent.setdefault(int(partition), {}).setdefault(int(at), {})[kind] = tensor
        self.uploads = {
            partition: [Batch(**batches[at]) for at in sorted(batches)] for partition, batches in sorted(sent.items())
        }
        whole = {int(partition): float(seconds) for partition, seconds in part_of(done.fixed, WHOLE).items()}
        self.whole, self._seconds = set(whole), self._seconds | whole
        self._begin()
        self.training.restore(done.weights)
        self.accuracy = done.accuracy

    def train_round(self, server_round: int) -> None:
        """Attack the round's initial model if the round is attacked, then train; the first round records the uploads."""
        training, task = self.training, self.plan.at(server_round)
        self.observe_model(server_round)
        # Not when they are collected, which is before: rows of this round are written anew when a run is resumed before its end.
        if server_round == UPLOAD_ROUND:
            self._record_uploads(task)
        loss, seconds = training.run_round(task)
        row = self.auditor.recorder.row
        row(task, metric=TRAIN_LOSS.name, value=loss, n=len(training.examples))
        row(task, metric=SERVER_SECONDS.name, value=seconds)

    def evaluate_round(self, server_round: int) -> None:
        """Have all clients evaluate the model (``record_reports``)."""
        task = self.plan.at(server_round)
        content = RecordDict({"config": self.exchange.config(task), "arrays": to_record(self.training.weights())})
        contents = dict.fromkeys(self.sizes, content)
        means = record_reports(self.exchange, task, [*contents], self.auditor.exchange("evaluate", contents))
        self.accuracy = means.get(CLEAN_ACCURACY, self.accuracy)

    def observe_model(self, server_round: int) -> None:
        """Attack a round's trained model, and in the first attacked round the uploads, which never change.

        Of an upload that broke off, the client cannot say what the model was trained on, so that no guess could be judged.
        """
        self.auditor.collect()
        if server_round not in self.attack_rounds:
            return
        task, weights = self.plan.at(server_round), self.training.weights()
        if server_round == min(self.attack_rounds) and self.attacks[UPLOAD]:
            self._observe(task, UPLOAD, weights, [seen for p in self.uploads for seen in self._attacked(p)])
        if server_round == min(self.attack_rounds) and self.attacks[COLLECTION]:
            self._observe(task, COLLECTION, weights, [self._collection(p) for p in sorted(self.whole)])
        if server_round > 1 and self.attacks[MODEL]:
            self._observe(task, MODEL, weights, [Seen(p, 0, self.sizes[p]) for p in sorted(self.whole)])

    def _attacked(self, partition: int) -> list[SeenUpload]:
        """The attacked images of a client: the first ones of its first batches; none where some of these never came."""
        if len(self.uploads[partition]) < self.plan.probe_targets:
            return []
        attacked = []
        for target, batch in enumerate(self.uploads[partition][: self.plan.probe_targets]):
            images, targets = batch.images[: self.plan.probe_images], batch.targets[: self.plan.probe_images]
            attacked.append(SeenUpload(partition, target, len(images), images, targets.argmax(1)))
        return attacked

    def _collection(self, partition: int) -> SeenCollection:
        sent = join(self.uploads[partition])
        return SeenCollection(partition, 0, self.sizes[partition], sent.images, sent.targets, self.plan.upload_passes)

    def _observe(self, task: Task, kind: Kind, weights: Tensors, seen: list[Any]) -> None:
        at_once, over_rounds = grouped(self.attacks[kind])
        groups = [*at_once, *((attack,) for attack in over_rounds)]
        attack_judged(self.auditor, task, kind, weights, seen, self._card(task, kind, seen), groups, self.label)

    def _card(self, task: Task, kind: Kind, seen: list[Seen]) -> ThreatCard:
        passes = self.plan.upload_passes
        mixes = any(defense.mixes_examples for defense in task.plan.defenses.defenses)
        of_one: str | int = "several mixtures" if mixes else passes
        of_images = {"undefended": "the images themselves", "read": "each image alone"} if kind == UPLOAD else {}
        return self.auditor.card(
            task,
            kind,
            seen,
            self.accuracy,
            labels=KnownLabels.UPLOADED,
            uploads_of_an_image=f"several mixtures in each of {passes} passes" if mixes and passes > 1 else of_one,
            uploaded_images=sum(len(batch) for mine in self.uploads.values() for batch in mine),
            **of_images,
        )
