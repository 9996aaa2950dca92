"""The server that collects uploads: what it accepts, what a failure costs, and what it lets attacks at."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from attacks import AsUploaded, JointEncodingInversion, LossThreshold
from clients.task.task import WholeModelPlan
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
from tests.simulations.broken_replies import Break, edit, metric, on, raising, without
from tests.simulations.broken_replies import at as entry
from tests.simulations.outsourced.test_run import outsourced_experiment
from tests.strategies.stub_grid import Rows

ATTACKS: dict[Kind, tuple[Any, ...]] = {
    UPLOAD: (AsUploaded(),), COLLECTION: (JointEncodingInversion(),), MODEL: (LossThreshold(),),
}  # fmt: skip


class Served:
    """A server with its clients, set up without a run around it; ``sizes`` are training examples, by default an even share."""

    def __init__(
        self, settings: Experiment, tamper: Tamper | None = None, sizes: Iterable[int] = (),
        attack_rounds: Iterable[int] = (),
    ) -> None:  # fmt: skip
        clients = settings.num_clients
        self.grid, self.rows = LocalGrid(clients, tamper), Rows()
        exchange = Exchange(self.grid, {at: 100 + at for at in range(clients)}, 60.0)
        known = set_up(exchange, settings.plan(), settings.partition)
        held = {partition: train for partition, (train, _) in known.sizes.items()}
        first = 0
        for partition, size in enumerate(sizes):
            indices = {"train": torch.arange(first, first + size), "test": torch.arange(10)}
            self.grid.contexts[100 + partition].state["indices"] = to_record(indices)
            held[partition], first = size, first + size
        pool: Any = AttackPool(0)
        pool.submit = lambda job: None
        self.server = OutsourcedServer(
            plan=WholeModelPlan.narrow(settings.plan(parse(""), card=known.card)),
            auditor=Auditor(exchange, pool, self.rows, share_images=False),  # type: ignore[arg-type]
            sizes=held, attacks=ATTACKS, attack_rounds=attack_rounds, min_usable=settings.min_usable,
            batches_per_message=settings.batches_per_message, label="demo",
        )  # fmt: skip

    def asked(self) -> list[int]:
        return [partition for kind, partition in self.grid.sent if kind == "train.upload"]

    def jobs_on(self, kind: Kind) -> list[AttackJob]:
        return [job for job in self.rows.jobs if job.kind is kind]


def second(record: str, make: Callable[[np.ndarray], np.ndarray]) -> Break:
    return edit(record, lambda arrays: arrays.update({"1": make(arrays["1"])}))


def test_everything_is_collected_whatever_the_size_of_messages(tmp_path: Path) -> None:
    for batches_per_message in (1, 3, 8):
        settings = outsourced_experiment(tmp_path, batches_per_message=batches_per_message)
        run = Served(settings, sizes=(41, 65))
        run.server.collect()
        assert [[len(batch) for batch in run.server.uploads[at]] for at in (0, 1)] == [[16, 16, 9], [16, 16, 16, 17]]
        data = settings.plan(parse("")).load_data().train
        got, own = run.server.training.examples, data.images[:106].float() / 255
        places = [int((own == one).flatten(1).all(1).nonzero().item()) for one in got.images]
        assert (sorted(places[:41]), sorted(places[41:])) == (list(range(41)), list(range(41, 106)))
        assert torch.equal(got.targets.argmax(1), data.labels[places])
        asked = [run.asked().count(at) for at in (0, 1)]
        assert asked == [-(-count // batches_per_message) for count in (3, 4)], "no client is asked for what it has not"
        run.server.train_round(1)
        assert (run.rows.failures, run.rows.of("clients-failed"), run.rows.of("uploaded-images")) == ([], [0], [106])
        assert run.rows.of("upload-bytes") == [106 / 2 * 4 * (784 + 10)]
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


BAD: dict[str, tuple[Break, str]] = {
    "error": (raising, "RuntimeError: disk full"),
    "lost": (lambda reply: None, "no reply within 60 s"),
    "NaN": (second("images", entry(7, float("nan"))), "images: '1' holds NaN or infinite values"),
    "infinite": (second("targets", entry(7, float("inf"))), "targets: '1' holds NaN or infinite values"),
    "size": (second("images", lambda v: v[:, :, :-1]), "images: '1' is float32(16, 1, 27, 28), expected float32(16, 1, 28"),
    "count": (second("targets", lambda v: v[:-1]), "targets: '1' is float32(15, 10), expected float32(16, 10)"),
    "classes": (second("targets", lambda v: v[:, :-1]), "targets: '1' is float32(16, 9), expected float32(16, 10)"),
    "type": (second("images", lambda v: v.astype(np.float64)), "images: '1' is float64(16, 1, 28, 28), expected float32"),
    "another batch": (edit("images", lambda a: a.update({"2": a.pop("1")})), "images: names differ from the requested ones"),
    "one more": (edit("targets", lambda a: a.update({"7": a["1"]})), "targets: names differ from the requested ones at ['7']"),
    "no images": (without("images"), "the reply has no 'images'"),
    "no examples": (metric("num-examples", 0), "metrics: num-examples is 0, expected a positive whole number"),
}  # fmt: skip


def test_too_few_whole_uploads_end_the_run(tmp_path: Path) -> None:
    settings = outsourced_experiment(tmp_path, min_usable=0.6)
    for batch, reason in ((0, ".*first reason: client 1: .*disk full"), (2, "")):
        with pytest.raises(
            TooFewReplies, match=f"1 of 2 train.upload replies are usable, min-usable = 0.6 asks.*{reason}"
        ):
            Served(settings, on("train.upload", raising, first=batch)).server.collect()
    Served(settings.but(min_usable=0.5), on("train.upload", raising, first=2)).server.collect()


def test_attacks_see_uploads_once_and_every_model_that_was_trained(tmp_path: Path) -> None:
    run = Served(outsourced_experiment(tmp_path, rounds=3), attack_rounds=(1, 2, 4))
    for at in (1, 2, 3):
        run.server.train_round(at)
        run.server.evaluate_round(at)
    weights = run.server.training.weights()
    run.server.observe_model(4)
    (uploaded,), (collected,), models = (run.jobs_on(kind) for kind in (UPLOAD, COLLECTION, MODEL))
    assert (uploaded.task.round, collected.task.round, [job.task.round for job in models]) == (1, 1, [2, 4])
    found: Any = uploaded.observed.seen
    assert [(x.partition, x.target, x.num_examples) for x in found] == [(p, t, 2) for p in (0, 1) for t in (0, 1)]
    for seen in found:
        batch = run.server.uploads[seen.partition][seen.target]
        assert torch.equal(seen.images, batch.images[:2])
        assert torch.equal(seen.labels, batch.targets[:2].argmax(1))
    found = collected.observed.seen
    assert [seen.partition for seen in found] == [0, 1]
    for seen in found:
        sent = run.server.uploads[seen.partition]
        assert torch.equal(seen.images, torch.cat([batch.images for batch in sent]))
    assert [seen.num_examples for seen in models[1].observed.seen] == [48, 48]
    assert all(torch.equal(models[1].observed.weights[name], weight) for name, weight in weights.items())


def test_a_client_that_fails_midway_costs_its_rest_and_leaves_a_row(subtests: pytest.Subtests, tmp_path: Path) -> None:
    settings = outsourced_experiment(tmp_path, batches_per_message=1)
    whole = Served(settings)
    whole.server.collect()
    for kind, (spoil, message) in BAD.items():
        with subtests.test(kind=kind):
            run = Served(settings, on("train.upload", spoil, first=1))
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
    settings = outsourced_experiment(tmp_path, batches_per_message=1, probe_targets=2)
    for broken, uploads_of in ((1, {0}), (2, {0, 1})):
        run = Served(settings, on("train.upload", raising, first=broken), attack_rounds=(1, 3))
        for at in (1, 2):
            run.server.train_round(at)
        run.server.observe_model(3)
        attacked = {kind: run.jobs_on(kind)[0].observed.seen for kind in (UPLOAD, COLLECTION, MODEL)}
        clients = {kind: {seen.partition for seen in of} for kind, of in attacked.items()}
        assert clients == {UPLOAD: uploads_of, COLLECTION: {0}, MODEL: {0}}
        assert len(run.rows.failures) == 1, "and no audit fails besides"
