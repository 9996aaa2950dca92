"""What a client uploads: every example once, as its defences make it, found again by the audit, and never twice."""

import itertools
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import Message
from torch import Tensor
from torch.nn import functional as F

from clients.messages.node import draws_of
from clients.outsourced.messages import OutsourcedClient, OutsourcedPlan
from clients.task.local_data import LocalData
from clients.task.task import Task
from clients.wire.records import tensors_of, values_of
from defenses.base import Batch
from defenses.spec import parse
from tests.clients.asked import Asked, allowed_by, refused

PLAN = OutsourcedPlan(
    scenario="outsourced",
    dataset="mnist-5k", data_dir="", download=False, image_size=0, train_limit=200, test_limit=50, model="lenet", width=0,
    norm="group", pipeline="", seed=3, rounds=3, local_epochs=1, batch_size=8, learning_rate=0.1, momentum=0.0,
    weight_decay=0.0, probe_targets=2, probe_images=3,
)  # fmt: skip
TRAIN = torch.arange(60, 101)
"""41 examples: five batches of 8, the last with the one that is left over."""
SIZES = [8, 8, 8, 8, 9]
NOISE = "ImageNoise(std=0.5)"
"""Protects an image once and for all."""
FRESH = "InstaHide(num_mixed=1, max_weight=1.0)"
"""Flips signs, anew whenever it is asked."""
LONGER = f"{FRESH} | Downsample(factor=1)"
PIPELINES = [
    "", "Downsample(factor=4)", "VisualMixer(window_lower=4, window_upper=4)", "ATS()", NOISE, "InstaHide()",
    FRESH, f"ATS() | {NOISE}",
]  # fmt: skip


class Uploader(Asked):
    def __init__(self, folder: Path, randomness: str = "seed", **node_config: Any) -> None:
        super().__init__(folder, randomness, train=TRAIN.tolist(), **node_config)

    def ask(self, task: Task, first: int, count: int) -> Message:
        return self("train.upload", task, first=first, count=count)

    def upload(self, pipeline: str = "", batches_per_message: int = 2) -> list[Batch]:
        found: list[Batch] = []
        for first in range(0, len(SIZES), batches_per_message):
            reply = self.ask(task_of(pipeline), first, batches_per_message)
            assert not reply.has_error(), reply.error.reason
            images, targets = tensors_of(reply, "images"), tensors_of(reply, "targets")
            assert list(images) == list(targets)
            assert sorted(images, key=int) == [str(at) for at in range(first, first + len(images))]
            found += [Batch(images[name], targets[name]) for name in sorted(images, key=int)]
            assert values_of(reply, "metrics")["num-examples"] == sum(map(len, found[first:]))
        return found

    def client(self, task: Task) -> OutsourcedClient:
        draws = draws_of(self.context, task.plan.seed)
        return OutsourcedClient(LocalData(task, 0, TRAIN.tolist(), range(20), draws))


def task_of(pipeline: str = "", **changes: Any) -> Task:
    return PLAN.at(1).but(pipeline=str(parse(pipeline)), **changes)


def own_images() -> Tensor:
    return PLAN.load_data().train.images[TRAIN].float() / 255


def rows_of(batches: list[Batch]) -> Batch:
    return Batch(torch.cat([one.images for one in batches]), torch.cat([one.targets for one in batches]))


def places(images: Tensor, among: Tensor) -> list[int]:
    return [int((among == one).flatten(1).all(1).nonzero().item()) for one in images]


def test_every_image_is_uploaded_once_with_its_class(tmp_path: Path) -> None:
    for randomness, per_message in (("seed", 1), ("seed", 3), ("secret", 2), ("secret", 100)):
        batches = Uploader(tmp_path / f"{randomness}-{per_message}", randomness).upload("", per_message)
        assert [len(one) for one in batches] == SIZES
        whole = rows_of(batches)
        order = places(whole.images, own_images())
        assert sorted(order) == list(range(len(TRAIN)))
        assert order != sorted(order), "in an order of the client's own"
        classes = PLAN.load_data().train.labels[TRAIN[order]]
        assert torch.equal(whole.targets, F.one_hot(classes, 10).float())


def test_the_size_of_messages_changes_nothing_that_is_uploaded(tmp_path: Path) -> None:
    for pipeline in PIPELINES:
        one, *others = (Uploader(tmp_path).upload(pipeline, count) for count in (1, 3, 100))
        for batch, again in ((batch, again) for other in others for batch, again in zip(one, other, strict=True)):
            assert torch.equal(batch.images, again.images), pipeline
            assert torch.equal(batch.targets, again.targets), pipeline


def test_what_is_uploaded_is_the_transform_of_each_image(tmp_path: Path) -> None:
    def windows(images: Tensor) -> Tensor:
        return F.unfold(images, 4, stride=4).sort(dim=1).values

    node = Uploader(tmp_path, "secret")
    small, mixed = node.upload("Downsample(factor=4)"), node.upload("VisualMixer(window_lower=4, window_upper=4)")
    for got, shuffled, one in zip(small, mixed, node.upload(""), strict=True):
        expected = F.interpolate(F.avg_pool2d(one.images, 4), scale_factor=4, mode="bilinear")
        torch.testing.assert_close(got.images, expected, atol=1e-6, rtol=0)
        assert not any(torch.equal(a, b) for a, b in zip(shuffled.images, one.images, strict=True))
        assert torch.equal(windows(shuffled.images), windows(one.images))
        assert torch.equal(got.targets, one.targets)
        assert torch.equal(shuffled.targets, one.targets)


def test_the_audit_knows_the_uploaded_rows_bit_for_bit(tmp_path: Path) -> None:
    for number, (pipeline, randomness) in enumerate(itertools.product(PIPELINES, ("seed", "secret"))):
        node = Uploader(tmp_path / str(number), randomness)
        sent = node.upload(pipeline)
        # Another pipeline's upload in between is another account.
        node.upload("Downsample(factor=2)")
        for server_round in (1, 4):
            known = node.client(task_of(pipeline, round=server_round)).truths("upload")
            assert (known.paired, known.whole_round, len(known.views)) == (True, False, PLAN.probe_targets)
            for view, batch in zip(known.views, sent, strict=False):
                assert len(view.seen) == len(view.positions) == PLAN.probe_images
                assert torch.equal(view.seen.images, batch.images[: PLAN.probe_images]), pipeline
                assert torch.equal(view.seen.targets, batch.targets[: PLAN.probe_images])
                assert torch.equal(view.original.images, own_images()[view.positions])
    # The audit of a model is against everyone.
    client = node.client(task_of(pipeline, round=4))
    (view,) = client.truths("model").views
    assert client.truths("model").whole_round
    assert torch.equal(view.original.images, own_images())
    assert client.trained_on().tolist() == list(range(len(TRAIN)))


def test_a_node_with_a_secret_uploads_once(tmp_path: Path) -> None:
    node = Uploader(tmp_path / "a", "secret")
    sent = node.upload(FRESH)
    for first, count in ((0, 2), (0, 100), (1, 1), (4, 1)):
        reply = node.ask(task_of(FRESH), first, count)
        assert refused(reply, allowed_by("repeats"))
        # However the pipeline is spelt, and whatever else is not the pipeline.
        for other in (task_of().but(pipeline=FRESH.replace(", ", " ,  ")), task_of(FRESH, batch_size=4, seed=9)):
            assert refused(node.ask(other, first, count))
    # A refused question leaves the draws as they are.
    view = node.client(task_of(FRESH, round=2)).truths("upload").views[0]
    assert torch.equal(view.seen.images, sent[0].images[: PLAN.probe_images])
    node = Uploader(tmp_path / "b", "secret")
    assert not node.ask(task_of(FRESH), 0, 2).has_error()
    assert refused(node.ask(task_of(FRESH), 1, 3)), "a batch that was sent, in larger company"
    assert not node.ask(task_of(FRESH), 2, 3).has_error()


def test_a_node_with_a_secret_uploads_in_as_many_passes_as_its_operator_allows(tmp_path: Path) -> None:
    asked = {passes: task_of(FRESH, upload_passes=passes) for passes in (1, 2, 3)}
    reply = Uploader(tmp_path / "more", "secret").ask(asked[2], 0, 2)
    assert refused(reply, "uploads of an image in 2 passes: its operator may allow it by upload-passes")
    node = Uploader(tmp_path / "default", "secret")
    assert not node.ask(asked[1], 0, 5).has_error()
    assert refused(node.ask(asked[3], 5, 5)), "a later message asks for more passes of the same upload"
    assert refused(Uploader(tmp_path / "three", "secret", upload_passes=2).ask(asked[3], 0, 2))
    assert not Uploader(tmp_path / "two", "secret", upload_passes=2).ask(asked[2], 0, 10).has_error()
    assert not Uploader(tmp_path / "seed").ask(asked[3], 0, 15).has_error(), "a simulation answers everything"


def test_an_upload_that_cannot_be_meant_is_an_error(tmp_path: Path) -> None:
    node = Uploader(tmp_path, "secret")
    for server_round, first, count, why in (
        (0, 0, 1, "an upload was requested in round 0; allowed: 1"),
        (2, 0, 1, "an upload was requested in round 2; allowed: 1"), (1, -1, 2, "allowed: 0 or more"),
        (1, 0, 0, "allowed: 1 or more"), (1, 0, -1, "allowed: 1 or more"),
    ):  # fmt: skip
        assert why in str(node.ask(task_of(round=server_round), first, count).error.reason)
    node.upload()  # nothing was counted as one
    assert not tensors_of(node.ask(task_of(), len(SIZES), 2), "images")


def signs_of(node: Uploader, pipeline: str = FRESH) -> Tensor:
    shown, client = rows_of(node.upload(pipeline)), node.client(task_of(pipeline))
    plain = torch.cat([client.uploads.batch(at).original.images for at in range(len(SIZES))])
    found = (2 * shown.images - 1) / torch.where((plain - 0.5).abs() > 0.05, 2 * plain - 1, torch.inf)
    return found.flatten(1).round()


@pytest.mark.numeric
def test_no_two_uploads_of_a_node_with_a_secret_share_draws(tmp_path: Path) -> None:
    # Asked again, under a pipeline with more stages, and of another node with the same images.
    node = Uploader(tmp_path / "a", "secret", repeats=-1)
    other = Uploader(tmp_path / "b", "secret")
    signs = torch.cat([signs_of(node), signs_of(node), signs_of(node, LONGER), signs_of(other)])
    assert (torch.corrcoef(signs) - torch.eye(len(signs))).abs().max() < 0.25, "784 values each: seven deviations"
    # In a simulation they do: the control, which says that shared draws would be found.
    simulated = Uploader(tmp_path / "c")
    first = signs_of(simulated)
    assert torch.equal(first, signs_of(simulated))
    assert torch.equal(first, signs_of(simulated, LONGER))
    assert first.abs().mean() > 0.9
