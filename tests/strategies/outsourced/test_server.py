"""The server that collects uploads: what it accepts, what a failure costs, and what it lets attacks at."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, Message, MetricRecord

from attacks import AsUploaded, JointEncodingInversion, LossThreshold
from clients.task.task import Task, WholeModelPlan
from clients.wire.records import to_record
from defenses.spec import parse
from simulations.experiment.experiment import Experiment
from simulations.runtime.nodes import set_up
from strategies.audit.auditor import Auditor
from strategies.audit.jobs import AttackJob
from strategies.audit.kinds import Kind
from strategies.audit.pool import AttackPool
from strategies.exchange.exchange import Exchange
from strategies.exchange.guard import TooFewReplies
from strategies.outsourced.observations import COLLECTION, MODEL, UPLOAD
from strategies.outsourced.server import OutsourcedServer
from tests.local_grid import LocalGrid, Tamper
from tests.simulations.outsourced.test_run import outsourced_experiment

Break = Callable[[Message], Message | None]
"""Spoils a reply; None loses it."""
ATTACKS: dict[Kind, tuple[Any, ...]] = {
    UPLOAD: (AsUploaded(),),
    COLLECTION: (JointEncodingInversion(),),
    MODEL: (LossThreshold(),),
}


@dataclass
class Rows:
    """Keeps rows in memory, and jobs instead of running them."""

    found: list[dict[str, Any]] = field(default_factory=list)
    jobs: list[AttackJob] = field(default_factory=list)

    def row(self, task: Task, *, metric: str, value: float | None, **fields: Any) -> None:
        self.found.append({"round": task.round, "metric": metric, "value": value, **fields})

    def open_job(self, job: AttackJob) -> None:
        self.jobs.append(job)

    def of(self, metric: str) -> list[Any]:
        """Values of a metric."""
        return [row["value"] for row in self.found if row["metric"] == metric]

    @property
    def failures(self) -> list[tuple[int, str, str]]:
        """(client, status, message) of all that went wrong."""
        return [(row["client"], row["status"], row["message"]) for row in self.found if row["metric"] == "client"]


class Served:
    """A server with its clients, set up without a run around it.

    Args:
        settings: Of the experiment.
        tamper: Spoils replies.
        sizes: Training examples of each client; by default an even share.
        pipeline: The defences.
        randomness: Of the nodes.
        attack_rounds: See ``OutsourcedServer``.
    """

    def __init__(
        self, settings: Experiment, tamper: Tamper | None = None, sizes: Iterable[int] = (), pipeline: str = "",
        randomness: str = "seed", attack_rounds: Iterable[int] = (),
    ) -> None:  # fmt: skip
        clients = settings.num_clients
        config = {at: {"secret-dir": f"{settings.output_dir}/secrets"} for at in range(clients)}
        self.grid, self.rows = LocalGrid(clients, tamper, config, randomness), Rows()
        exchange = Exchange(self.grid, {at: 100 + at for at in range(clients)}, 60.0)
        known = set_up(exchange, settings)
        held = {partition: train for partition, (train, _) in known.sizes.items()}
        first = 0
        for partition, size in enumerate(sizes):
            indices = {"train": torch.arange(first, first + size), "test": torch.arange(10)}
            self.grid.contexts[100 + partition].state["indices"] = to_record(indices)
            held[partition], first = size, first + size
        pool: Any = AttackPool(0)
        pool.submit = lambda job: None
        self.server = OutsourcedServer(
            plan=WholeModelPlan.narrow(settings.plan(parse(pipeline), card=known.card)),
            auditor=Auditor(exchange, pool, self.rows, share_images=False),  # type: ignore[arg-type]
            sizes=held, attacks=ATTACKS, attack_rounds=attack_rounds, min_usable=settings.min_usable,
            batches_per_message=settings.upload_batches, label="demo",
        )  # fmt: skip

    def asked(self, message_type: str = "train.upload") -> list[int]:
        """Partitions in the order in which they were asked."""
        return [partition for kind, partition in self.grid.sent if kind == message_type]

    def jobs_on(self, kind: Kind) -> list[AttackJob]:
        return [job for job in self.rows.jobs if job.kind is kind]


def spoiling(spoil: Break, at: Iterable[tuple[int, int]]) -> Tamper:
    """A tamper function: the replies of (partition, first batch) are spoilt."""
    wanted = set(at)

    def tamper(partition: int, request: Message, reply: Message) -> Message | None:
        if request.metadata.message_type != "train.upload":
            return reply
        config: Any = request.content["config"]
        return spoil(reply) if (partition, config["first"]) in wanted else reply

    return tamper


def raising(_: Message) -> Message:
    raise RuntimeError("disk full")


def edit(record: str, change: Callable[[dict[str, np.ndarray]], Any]) -> Break:
    """Changes the arrays of a record."""

    def spoil(reply: Message) -> Message:
        arrays = {name: array.numpy().copy() for name, array in reply.content[record].items()}
        change(arrays)
        reply.content[record] = ArrayRecord({name: Array(values) for name, values in arrays.items()})
        return reply

    return spoil


def setting(record: str, name: str, make: Callable[[np.ndarray], np.ndarray]) -> Break:
    return edit(record, lambda arrays: arrays.update({name: make(arrays[name])}))


def with_value(value: float) -> Callable[[np.ndarray], np.ndarray]:
    def make(values: np.ndarray) -> np.ndarray:
        values.flat[7] = value
        return values

    return make


def without(record: str) -> Break:
    def spoil(reply: Message) -> Message:
        del reply.content[record]
        return reply

    return spoil


def counting(value: Any) -> Break:
    def spoil(reply: Message) -> Message:
        reply.content["metrics"] = MetricRecord({"num-examples": value})
        return reply

    return spoil


# What is collected ----------------------------------------------------------------------------------------------------------


def test_everything_is_collected_whatever_the_size_of_messages(subtests: pytest.Subtests, tmp_path: Path) -> None:
    for upload_batches in [1, 3, 8]:
        with subtests.test(upload_batches=upload_batches):
            settings = outsourced_experiment(tmp_path, upload_batches=upload_batches)
            run = Served(settings, sizes=(41, 65))
            run.server.collect()
            assert [len(batch) for batch in run.server.uploads[0]] == [16, 16, 9]
            assert [len(batch) for batch in run.server.uploads[1]] == [16, 16, 16, 17]
            data = settings.plan(parse("")).load_data().train
            got, own = run.server.training.examples, data.images[:106].float() / 255
            places = [int((own == one).flatten(1).all(1).nonzero().item()) for one in got.images]
            assert sorted(places[:41]) == list(range(41))
            assert sorted(places[41:]) == list(range(41, 106))
            assert torch.equal(got.targets.argmax(1), data.labels[places])
            # Nobody is asked for what it does not have.
            assert run.asked().count(0) == -(-3 // upload_batches)
            assert run.asked().count(1) == -(-4 // upload_batches)
            assert run.rows.failures == []
            run.server.train_round(1)
            assert (run.rows.of("clients-failed"), run.rows.of("uploaded-images")) == ([0], [106])
            (sent,) = run.rows.of("upload-bytes")
            assert sent == 106 / 2 * 4 * (784 + 10)
            assert run.rows.of("upload-seconds")[0] > 0


def test_what_goes_on_has_the_uploads_and_tells_of_them_once(tmp_path: Path) -> None:
    settings = outsourced_experiment(tmp_path, rounds=3)
    whole, run = Served(settings), Served(settings)
    for at in (1, 2, 3):
        whole.server.train_round(at)
        if at == 2:
            kept = whole.server.checkpoint(at)
    run.server.restore(replace(kept, accuracy=0.25))
    assert run.server.accuracy == 0.25
    run.server.train_round(3)
    assert run.asked() == []
    mine, theirs = run.server.checkpoint(3).weights, whole.server.checkpoint(3).weights
    assert mine.keys() == theirs.keys()
    assert all(torch.equal(mine[name], tensor) for name, tensor in theirs.items())
    assert (run.rows.of("upload-bytes"), len(whole.rows.of("upload-bytes"))) == ([], 1)


# What a failure costs -------------------------------------------------------------------------------------------------------

BAD: dict[str, tuple[Break, str]] = {
    "error": (raising, "RuntimeError: disk full"),
    "lost": (lambda reply: None, "no reply within 60 s"),
    "NaN": (setting("images", "1", with_value(float("nan"))), "images: '1' holds NaN or infinite values"),
    "infinite": (setting("targets", "1", with_value(float("inf"))), "targets: '1' holds NaN or infinite values"),
    "size": (setting("images", "1", lambda v: v[:, :, :-1]), "images: '1' is float32(16, 1, 27, 28), expected float32(16, 1, 28"),
    "count": (setting("targets", "1", lambda v: v[:-1]), "targets: '1' is float32(15, 10), expected float32(16, 10)"),
    "classes": (setting("targets", "1", lambda v: v[:, :-1]), "targets: '1' is float32(16, 9), expected float32(16, 10)"),
    "type": (setting("images", "1", lambda v: v.astype(np.float64)), "images: '1' is float64(16, 1, 28, 28), expected float32"),
    "another batch": (edit("images", lambda a: a.update({"2": a.pop("1")})), "images: names differ from the requested ones"),
    "one more": (edit("targets", lambda a: a.update({"7": a["1"]})), "targets: names differ from the requested ones at ['7']"),
    "no images": (without("images"), "the reply has no 'images'"),
    "no targets": (without("targets"), "the reply has no 'targets'"),
    "no examples": (counting(0), "metrics: num-examples is 0, expected a positive whole number"),
}  # fmt: skip


def test_too_few_whole_uploads_end_the_run(tmp_path: Path) -> None:
    settings = outsourced_experiment(tmp_path, min_usable=0.6)
    with pytest.raises(
        TooFewReplies, match=r"1 of 2 train.upload replies are usable.*first reason: client 1: .*disk full"
    ):
        Served(settings, spoiling(raising, [(1, 0)])).server.collect()
    with pytest.raises(TooFewReplies, match=r"1 of 2 train.upload replies are usable, min-usable = 0.6 asks for more"):
        Served(settings, spoiling(raising, [(1, 2)])).server.collect()
    Served(replace(settings, min_usable=0.5), spoiling(raising, [(1, 2)])).server.collect()


# What is attacked -----------------------------------------------------------------------------------------------------------


def test_attacks_see_uploads_once_and_every_model_that_was_trained(tmp_path: Path) -> None:
    run = Served(outsourced_experiment(tmp_path, rounds=3), attack_rounds=(1, 2, 4))
    for at in (1, 2, 3):
        run.server.train_round(at)
        run.server.evaluate_round(at)
    weights = run.server.training.weights()
    run.server.observe_model(4)
    (uploaded,) = run.jobs_on(UPLOAD)
    assert uploaded.task.round == 1
    assert [(seen.partition, seen.target, seen.num_examples) for seen in uploaded.observed.seen] == [
        (p, t, 2) for p in (0, 1) for t in (0, 1)
    ]
    for seen in uploaded.observed.seen:
        batch = run.server.uploads[seen.partition][seen.target]
        assert torch.equal(seen.images, batch.images[:2])  # type: ignore[attr-defined]
        assert torch.equal(seen.labels, batch.targets[:2].argmax(1))  # type: ignore[attr-defined]
    (collected,) = run.jobs_on(COLLECTION)
    assert collected.task.round == 1
    for seen in collected.observed.seen:
        sent = run.server.uploads[seen.partition]
        assert torch.equal(seen.images, torch.cat([batch.images for batch in sent]))  # type: ignore[attr-defined]
    assert [seen.partition for seen in collected.observed.seen] == [0, 1]
    models = run.jobs_on(MODEL)
    assert [job.task.round for job in models] == [2, 4]
    assert [seen.num_examples for seen in models[1].observed.seen] == [48, 48]
    assert all(torch.equal(models[1].observed.weights[name], weight) for name, weight in weights.items())
    assert any(not torch.equal(models[0].observed.weights[name], weight) for name, weight in weights.items())
    # The card names what was known then: the model that round 2 begins with was judged in round 1.
    assert models[0].card.model_accuracy is not None
    assert uploaded.card.labels == "uploaded with the images"


def test_a_client_that_fails_in_the_middle_costs_its_rest_and_leaves_a_row(
    subtests: pytest.Subtests, tmp_path: Path
) -> None:
    settings = outsourced_experiment(tmp_path, upload_batches=1)
    whole = Served(settings)
    whole.server.collect()
    for kind, (spoil, message) in BAD.items():
        with subtests.test(kind=kind):
            run = Served(settings, spoiling(spoil, [(1, 1)]))
            run.server.collect()
            assert run.asked() == [0, 1, 0, 1, 0], "who failed is asked no more"
            assert [len(run.server.uploads[at]) for at in (0, 1)] == [3, 1]
            assert len(run.server.training.examples) == 64
            assert torch.equal(run.server.uploads[1][0].images, whole.server.uploads[1][0].images)
            ((client, status, said),) = run.rows.failures
            assert (client, status) == (1, "failed")
            assert said.startswith(f"train.upload: {message}")
    run.server.train_round(1)
    assert (run.rows.of("clients-failed"), run.rows.of("uploaded-images")) == ([1], [64])
    # It still has a word in evaluation, and its test examples count.
    run.server.evaluate_round(0)
    assert {row["n"] for row in run.rows.found if row["metric"] == "test-accuracy"} == {30}


def test_a_client_whose_upload_broke_off_is_attacked_only_in_what_its_audit_can_judge(tmp_path: Path) -> None:
    """Two batches are attacked. Members would be people whom the model never saw."""
    settings = outsourced_experiment(tmp_path, upload_batches=1, probe_targets=2)
    for broken, uploads_of in ((1, {0}), (2, {0, 1})):
        run = Served(settings, spoiling(raising, [(1, broken)]), attack_rounds=(1, 3))
        for at in (1, 2):
            run.server.train_round(at)
        run.server.observe_model(3)
        attacked = {kind: run.jobs_on(kind)[0].observed.seen for kind in (UPLOAD, COLLECTION, MODEL)}
        clients = {kind: {seen.partition for seen in of} for kind, of in attacked.items()}
        assert clients == {UPLOAD: uploads_of, COLLECTION: {0}, MODEL: {0}}
        assert len(run.rows.failures) == 1, "and no audit fails besides"
