"""What a client uploads: every example once, as its defences make it, found again by the audit, and never twice."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import Message, RecordDict
from torch import Tensor
from torch.nn import functional as F

from clients.messages.node import draws_of
from clients.outsourced.plan import OutsourcedPlan
from clients.outsourced.uploads import OutsourcedClient
from clients.task.local_data import LocalData
from clients.task.task import Task
from clients.wire.records import REFUSED, tensors_of, to_record, values_of
from defenses.base import Batch
from defenses.spec import parse
from strategies.exchange.exchange import Exchange
from tests.local_grid import LocalGrid

PLAN = OutsourcedPlan(
    scenario="outsourced",
    dataset="mnist-5k", data_dir="", download=False, image_size=0, train_limit=200, test_limit=50, model="lenet", width=0,
    norm="group", pipeline="", seed=3, rounds=3, local_epochs=1, batch_size=8, learning_rate=0.1, momentum=0.0,
    weight_decay=0.0, probe_targets=2, probe_images=3,
)  # fmt: skip
TRAIN = torch.arange(60, 101)
"""41 examples: five batches of 8, the last with the one that is left over."""
SIZES = [8, 8, 8, 8, 9]
NOISE = "ImageNoise(std=0.5, clamp=False)"
"""Protects an image once and for all."""
FRESH = "InstaHide(num_mixed=1, max_weight=1.0)"
"""Flips signs, anew whenever it is asked."""
PIPELINES = [
    "", "Downsample(factor=4)", "VisualMixer(window_lower=4, window_upper=4)", "ATS()", NOISE, "InstaHide()",
    FRESH, f"ATS() | {NOISE}",
]  # fmt: skip


class Uploader:
    """One node and the server that asks it, by messages that take the wire format.

    Args:
        folder: Of the node's secret.
        randomness: "seed" or "secret".
        node_config: Further configuration of the node.
    """

    def __init__(self, folder: Path, randomness: str = "seed", **node_config: Any) -> None:
        config = {"secret-dir": str(folder), **{key.replace("_", "-"): value for key, value in node_config.items()}}
        self.grid = LocalGrid(1, randomness=randomness, node_config={0: config})
        self.context = self.grid.contexts[100]
        self.context.state["indices"] = to_record({"train": TRAIN, "test": torch.arange(20)})
        self.exchange = Exchange(self.grid, {0: 100}, 60.0)

    def ask(self, task: Task, first: int, count: int) -> Message:
        """The reply to one message."""
        config = self.exchange.config(task, first=first, count=count)
        return self.exchange("train.upload", {0: RecordDict({"config": config})})[0]

    def upload(self, pipeline: str = "", batches_per_message: int = 2) -> list[Batch]:
        """The batches of a whole upload, in order."""
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
        """The client as it answers an audit: a process of its own, with what the node has kept."""
        draws = draws_of(self.context, task.plan.seed)
        return OutsourcedClient(LocalData(task, 0, TRAIN.tolist(), range(20), draws))


def task_of(pipeline: str = "", **changes: Any) -> Task:
    return PLAN.at(1).but(pipeline=str(parse(pipeline)), **changes)


def own_images() -> Tensor:
    return PLAN.load_data().train.images[TRAIN].float() / 255


def rows_of(batches: list[Batch]) -> Batch:
    return Batch(torch.cat([one.images for one in batches]), torch.cat([one.targets for one in batches]))


def places(images: Tensor, among: Tensor) -> list[int]:
    """Which of other images each one is."""
    return [int((among == one).flatten(1).all(1).nonzero().item()) for one in images]


def equal(a: list[Batch], b: list[Batch]) -> bool:
    pairs = zip(a, b, strict=True)
    return all(torch.equal(x.images, y.images) and torch.equal(x.targets, y.targets) for x, y in pairs)


# Everyone once --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("randomness", ["seed", "secret"])
@pytest.mark.parametrize("batches_per_message", [1, 2, 3, 5, 100])
def test_every_image_is_uploaded_once_with_its_class(tmp_path: Path, batches_per_message: int, randomness: str) -> None:
    batches = Uploader(tmp_path, randomness).upload("", batches_per_message)
    assert [len(one) for one in batches] == SIZES
    whole = rows_of(batches)
    order = places(whole.images, own_images())
    assert sorted(order) == list(range(len(TRAIN)))
    assert order != sorted(order), "in an order of the client's own"
    classes = PLAN.load_data().train.labels[TRAIN[order]]
    assert torch.equal(whole.targets, F.one_hot(classes, 10).float())


@pytest.mark.parametrize("pipeline", PIPELINES)
def test_the_size_of_messages_changes_nothing_that_is_uploaded(tmp_path: Path, pipeline: str) -> None:
    one, three, all_at_once = (Uploader(tmp_path).upload(pipeline, count) for count in (1, 3, 100))
    assert equal(one, three)
    assert equal(one, all_at_once)


def test_what_lies_beyond_the_end_is_empty_and_what_never_was_a_batch_is_refused(tmp_path: Path) -> None:
    node = Uploader(tmp_path)
    node.upload()
    assert not tensors_of(node.ask(task_of(), len(SIZES), 2), "images")
    assert "allowed: 0 or more" in str(node.ask(task_of(), -1, 2).error.reason)
    assert "allowed: 1 or more" in str(node.ask(task_of(), 0, 0).error.reason)
    assert "allowed: 1 or more" in str(node.ask(task_of(), 0, -1).error.reason)


# What is uploaded is what the defences make of it ---------------------------------------------------------------------------


def test_a_fixed_transform_is_that_of_each_image(tmp_path: Path) -> None:
    node = Uploader(tmp_path, "secret")
    shown, plain = node.upload("Downsample(factor=4)"), node.upload("")
    for got, one in zip(shown, plain, strict=True):
        assert not torch.allclose(got.images, one.images)
        small = F.avg_pool2d(one.images, 4)
        torch.testing.assert_close(got.images, F.interpolate(small, scale_factor=4, mode="bilinear"), atol=1e-6, rtol=0)
        assert torch.equal(got.targets, one.targets)


@pytest.mark.parametrize("randomness", ["seed", "secret"])
def test_a_shuffle_keeps_the_values_of_every_window_of_each_image(tmp_path: Path, randomness: str) -> None:
    node = Uploader(tmp_path, randomness)
    pipeline = "VisualMixer(window_lower=4, window_upper=4)"
    shown, plain = node.upload(pipeline), node.upload("")

    def windows(images: Tensor) -> Tensor:
        return F.unfold(images, 4, stride=4).sort(dim=1).values

    for got, one in zip(shown, plain, strict=True):
        assert not any(torch.equal(a, b) for a, b in zip(got.images, one.images, strict=True))
        assert torch.equal(windows(got.images), windows(one.images))
        assert torch.equal(got.targets, one.targets)


@pytest.mark.parametrize("randomness", ["seed", "secret"])
def test_soft_labels_travel_with_mixed_images(tmp_path: Path, randomness: str) -> None:
    node = Uploader(tmp_path, randomness)
    shown, plain = node.upload("InstaHide(num_mixed=3)"), node.upload("")
    for got, one in zip(shown, plain, strict=True):
        own = one.targets.argmax(1)
        torch.testing.assert_close(got.targets.sum(1), torch.ones(len(own)))
        assert (got.targets.gather(1, own[:, None]) > 0).all()
        assert not got.targets[:, one.targets.sum(0) == 0].any(), "a class that nobody of the batch has"
        assert ((got.targets > 0).sum(1) > 1).any()
        # |2 x~ - 1| is |2 m - 1| of the mixture m. What is white or black in all images of a batch is so in their mixtures.
        edge = (one.images == 0).all(0)
        assert edge.any()
        assert (2 * got.images[:, edge] - 1).abs().min() == pytest.approx(1, abs=1e-5)


# The audit finds it again ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("server_round", [1, 3, 4])
@pytest.mark.parametrize("randomness", ["seed", "secret"])
@pytest.mark.parametrize("pipeline", PIPELINES)
def test_the_audit_knows_the_uploaded_rows_bit_for_bit(
    tmp_path: Path, pipeline: str, randomness: str, server_round: int
) -> None:
    node = Uploader(tmp_path, randomness)
    sent = node.upload(pipeline)
    # Another pipeline's upload in between is another account.
    node.upload("Downsample(factor=2)")
    known = node.client(task_of(pipeline, round=server_round)).truths("upload")
    assert known.paired
    assert not known.whole_round
    assert len(known.views) == PLAN.probe_targets
    for view, batch in zip(known.views, sent, strict=False):
        assert len(view.seen) == len(view.positions) == PLAN.probe_images
        assert torch.equal(view.seen.images, batch.images[: PLAN.probe_images])
        assert torch.equal(view.seen.targets, batch.targets[: PLAN.probe_images])
        assert torch.equal(view.original.images, own_images()[view.positions])


def test_the_audit_of_a_model_is_against_everyone(tmp_path: Path) -> None:
    node = Uploader(tmp_path, "secret")
    node.upload(NOISE)
    client = node.client(task_of(NOISE, round=4))
    (view,) = client.truths("model").views
    assert client.truths("model").whole_round
    assert torch.equal(view.original.images, own_images())
    assert client.trained_on().tolist() == list(range(len(TRAIN)))


# Never twice ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("first", "count"), [(0, 2), (0, 100), (1, 1), (4, 1)])
def test_a_node_with_a_secret_uploads_once(tmp_path: Path, first: int, count: int) -> None:
    node = Uploader(tmp_path, "secret")
    sent = node.upload(FRESH)
    reply = node.ask(task_of(FRESH), first, count)
    assert reply.error.code == REFUSED
    assert "may allow it by repeats in the node's configuration" in str(reply.error.reason)
    # However the pipeline is spelt, and whatever else is not the pipeline.
    for other in (task_of().but(pipeline=FRESH.replace(", ", " ,  ")), task_of(FRESH, batch_size=4, seed=9)):
        assert node.ask(other, first, count).error.code == REFUSED
    # A refused question leaves the draws as they are.
    view = node.client(task_of(FRESH, round=2)).truths("upload").views[0]
    assert torch.equal(view.seen.images, sent[0].images[: PLAN.probe_images])


def test_a_batch_that_was_sent_is_not_sent_in_larger_company(tmp_path: Path) -> None:
    node = Uploader(tmp_path, "secret")
    assert not node.ask(task_of(FRESH), 0, 2).has_error()
    assert node.ask(task_of(FRESH), 1, 3).error.code == REFUSED
    assert not node.ask(task_of(FRESH), 2, 3).has_error()


def test_a_simulated_node_uploads_again_and_the_same(tmp_path: Path) -> None:
    node = Uploader(tmp_path)
    assert equal(node.upload(FRESH), node.upload(FRESH))


def test_a_node_with_a_secret_uploads_in_as_many_passes_as_its_operator_allows(tmp_path: Path) -> None:
    asked = {passes: task_of(FRESH, upload_passes=passes) for passes in (1, 2, 3)}
    node = Uploader(tmp_path / "default", "secret")
    refused = node.ask(asked[2], 0, 2)
    assert refused.error.code == REFUSED
    assert "uploads of an image in 2 passes: its operator may allow it by upload-passes" in str(refused.error.reason)
    assert not node.ask(asked[1], 0, 5).has_error(), "and nothing was booked"
    assert node.ask(asked[3], 5, 5).error.code == REFUSED, (
        "a later message cannot ask for more passes of the same upload"
    )
    node = Uploader(tmp_path / "two", "secret", upload_passes=2)
    assert node.ask(asked[3], 0, 2).error.code == REFUSED
    assert not node.ask(asked[2], 0, 10).has_error()
    assert not Uploader(tmp_path / "any", "secret", upload_passes=-1).ask(asked[3], 0, 15).has_error()
    assert not Uploader(tmp_path / "seed").ask(asked[3], 0, 15).has_error(), "a simulation answers everything"
    wrong = Uploader(tmp_path / "wrong", "secret", upload_passes=True).ask(asked[1], 0, 1)
    assert "upload-passes is True in the node's configuration; allowed: a whole number from -1" in str(
        wrong.error.reason
    )


@pytest.mark.parametrize("server_round", [0, 2, 4])
@pytest.mark.parametrize("randomness", ["seed", "secret"])
def test_an_upload_in_another_round_is_an_error(tmp_path: Path, randomness: str, server_round: int) -> None:
    node = Uploader(tmp_path, randomness)
    reply = node.ask(task_of(round=server_round), 0, 1)
    assert f"an upload was requested in round {server_round}; allowed: 1" in str(reply.error.reason)
    assert not node.ask(task_of(), 0, 1).has_error(), "and is not counted as one"


Again = Callable[[Uploader], tuple[Tensor, Tensor]]


def signs_of(node: Uploader, pipeline: str = FRESH) -> Tensor:
    """(N, pixels): the signs by which all images were multiplied; about 0 where a grey pixel hides them."""
    shown, client = rows_of(node.upload(pipeline)), node.client(task_of(pipeline))
    plain = torch.cat([client.uploads.batch(at).original.images for at in range(len(SIZES))])
    found = (2 * shown.images - 1) / torch.where((plain - 0.5).abs() > 0.05, 2 * plain - 1, torch.inf)
    return found.flatten(1).round()


def twice(node: Uploader) -> tuple[Tensor, Tensor]:
    """The same question again, where the operator allows it."""
    return signs_of(node), signs_of(node)


def two_pipelines(node: Uploader) -> tuple[Tensor, Tensor]:
    """Stages behind the first make another pipeline."""
    return signs_of(node), signs_of(node, f"{FRESH} | Downsample(factor=1)")


@pytest.mark.parametrize("again", [twice, two_pipelines])
def test_no_two_uploads_of_a_node_with_a_secret_share_draws(tmp_path: Path, again: Again) -> None:
    """In a simulation they do: the control, which says that shared draws would be found."""
    first, second = again(Uploader(tmp_path, "secret", repeats=-1))
    signs = torch.cat([first, second])
    likeness = torch.corrcoef(signs) - torch.eye(len(signs))
    assert likeness.abs().max() < 0.25, "784 values each: seven deviations"
    first, second = again(Uploader(tmp_path))
    assert torch.equal(first, second)
    assert first.abs().mean() > 0.9


def test_two_nodes_draw_apart_although_they_hold_the_same_images(tmp_path: Path) -> None:
    first, second = (Uploader(tmp_path / name, "secret") for name in "ab")
    a, b = rows_of(first.upload()), rows_of(second.upload())
    assert places(a.images, own_images()) != places(b.images, own_images())
    signs = torch.cat([signs_of(first), signs_of(second)])
    assert (torch.corrcoef(signs) - torch.eye(len(signs))).abs().max() < 0.25


@pytest.mark.parametrize("pipeline", [NOISE, "VisualMixer(window_lower=4, window_upper=4)"])
def test_what_protects_once_is_the_same_in_every_upload_so_that_nothing_averages_out(
    tmp_path: Path, pipeline: str
) -> None:
    node = Uploader(tmp_path, "secret", repeats=1)
    assert equal(node.upload(pipeline), node.upload(pipeline, 3))
    assert node.ask(task_of(pipeline), 0, 1).error.code == REFUSED, "twice is all that its operator allows"


def test_a_message_of_another_scenario_is_refused(tmp_path: Path) -> None:
    node = Uploader(tmp_path)
    config = node.exchange.config(task_of(), first=0, count=1)
    fields = json.loads(str(config["task"]))
    fields["plan"] = {name: value for name, value in fields["plan"].items() if not name.startswith("upload")}
    fields["plan"]["scenario"] = "federated"
    config["task"] = json.dumps(fields)
    reply = node.exchange("train.upload", {0: RecordDict({"config": config})})[0]
    assert "train.upload is no message of the scenario federated" in str(reply.error.reason)
