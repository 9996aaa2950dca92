"""A client whose images do not fit into memory does what one does whose images do, bit for bit."""

from __future__ import annotations

from dataclasses import fields

import pytest
import torch
from torch import Tensor

from attacks.local_model import shared_tensors
from clients.data.datasets import DataError
from clients.data.images import StoredImages
from clients.federated.client import LocalClient
from clients.federated.local_training import train_alone
from clients.federated.plan import FederatedPlan
from clients.scoring.audit import audit_baselines
from clients.scoring.null_baselines import means_of
from clients.split.plan import SplitPlan
from clients.split.training import SplitClient
from clients.task.auxiliary import Auxiliary
from clients.task.batches import chunks
from clients.task.local_data import LocalData
from clients.task.task import Plan

TASK = FederatedPlan(
    scenario="federated",
    dataset="photos", data_dir="", download=False, image_size=20, train_limit=120, test_limit=40, model="lenet", width=0,
    norm="group", pipeline="", seed=3, rounds=2, local_epochs=2, batch_size=16, learning_rate=0.1, momentum=0.9,
    weight_decay=0.01, probe_targets=2, probe_images=2,
).at(1)  # fmt: skip
PIPELINES = [
    "",
    "VisualMixer(window_lower=2, window_upper=4)",
    "ImageNoise(std=0.1) | ATS(policies='3-1-7+43-18-18')",
    "Downsample(factor=5) | DPSGD(noise_multiplier=1.0)",
    "InstaHide()",
]
SHARE = range(3, 58)
LITTLE = 1e-6


def both(**changes: object) -> tuple[LocalClient, LocalClient]:
    task = TASK.but(**changes)  # type: ignore[arg-type]
    held, stored = (LocalClient(LocalData(task.but(image_memory=m), 1, SHARE, range(30))) for m in (1.0, LITTLE))
    assert isinstance(stored.data.dataset.train.images, StoredImages)
    assert isinstance(held.data.dataset.train.images, Tensor)
    return held, stored


def equal(left: dict[str, Tensor], right: dict[str, Tensor]) -> bool:
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)


@pytest.mark.parametrize("views", [{}, {"crop_padding": 2, "horizontal_flip": True}])
@pytest.mark.parametrize("pipeline", PIPELINES)
def test_training_probes_audits_and_scores_are_the_same(pipeline: str, views: dict[str, object]) -> None:
    held, stored = both(pipeline=pipeline, **views)
    weights = {name: tensor.clone() for name, tensor in shared_tensors(held.task.plan.build_model()).items()}
    assert equal(held.train(weights, {}).updates[0], stored.train(weights, {}).updates[0])
    for left, right in zip(held.probe(weights, {}).updates, stored.probe(weights, {}).updates, strict=True):
        assert equal(left, right)
    assert held.evaluate(weights) == stored.evaluate(weights)
    for left_view, right_view in ((held.trained_views(), stored.trained_views()), (held.probed(1), stored.probed(1))):
        assert torch.equal(left_view.original.images, right_view.original.images)
        assert torch.equal(left_view.seen.images, right_view.seen.images)
        assert torch.equal(left_view.seen.targets, right_view.seen.targets)
    assert audit_baselines(held, "probe", pictures=False) == audit_baselines(stored, "probe", pictures=False)


def test_what_is_kept_depends_on_no_other_block() -> None:
    """Any selection, in any order, is that selection of the whole; the last block is not full."""
    held, stored = both(pipeline="ImageNoise(std=0.1)")
    whole = held.data.kept(torch.arange(55))
    assert torch.equal(stored.data.kept(torch.arange(55)).images, whole.images)
    for chosen in (torch.tensor([54, 0, 7, 8, 7]), torch.randperm(55), torch.arange(48, 55)):
        assert torch.equal(stored.data.kept(chosen).images, whole.images[chosen])
    assert not torch.equal(
        whole.images[:8] - held.data.originals().images[:8], whole.images[8:16] - held.data.originals().images[8:16]
    )


@pytest.mark.parametrize("pipeline", ["", "Downsample(factor=5)", "BatchShuffle(k=0.4)", "AdversarialTraining()"])
def test_what_a_split_client_sends_is_the_same(pipeline: str) -> None:
    common = {spec.name: getattr(TASK.plan, spec.name) for spec in fields(Plan)}
    own = {"scenario": "split", "model": "vit", "width": 8, "pipeline": pipeline, "crop_padding": 2}
    task = SplitPlan(**common | own, depth=2, heads=2, patch_size=5, train_edge=True).at(1, 0.1)
    held, stored = (SplitClient(LocalData(task.but(image_memory=m), 1, SHARE, range(30))) for m in (1.0, LITTLE))
    edge = held.load_edge({})
    for number in (0, 3):
        assert torch.equal(held.batches.smash(edge, number).features, stored.batches.smash(edge, number).features)
    assert torch.equal(held.smash_test(edge, 5, 20), stored.smash_test(edge, 5, 20))
    assert torch.equal(held.audits.truth(1).seen.images, stored.audits.truth(1).seen.images)
    logits = torch.randn(30, 8, generator=torch.Generator().manual_seed(0))
    assert held.judge(logits) == stored.judge(logits)


def test_the_servers_own_examples_must_fit_and_can_be_limited() -> None:
    task = TASK.but(auxiliary_fraction=0.5)
    batch = Auxiliary(task.plan).examples()
    assert len(batch) == 60
    fits = task.but(auxiliary_limit=9, image_memory=9 * 3 * 400 * 4 / 2**30)
    assert len(Auxiliary(fits.plan).examples()) == 9
    assert len(Auxiliary(fits.plan).held_out(fits.plan.load_data().train.labels.numpy())) == 9
    with pytest.raises(DataError, match="auxiliary-limit to at most 9, or raise image-memory"):
        Auxiliary(fits.but(auxiliary_limit=0).plan).examples()
    private = fits.but(auxiliary_data="private")
    assert len(Auxiliary(private.plan).examples()) == 9
    train_alone(fits.but(rounds=1, pipeline="ImageNoise(std=0.1)").plan, Auxiliary(fits.plan).examples(), 0)


def test_the_mean_image_is_the_mean_of_all() -> None:
    for one in both():
        mean = means_of(one.data, lambda positions, _, one=one: one.data.plain(positions).images, 7).mean()
        torch.testing.assert_close(mean, one.data.originals().images.mean(0), atol=1e-6, rtol=0)


@pytest.mark.parametrize(("count", "first", "sizes"), [(7, 0, [4, 3]), (9, 2, [4, 5]), (1, 0, [1]), (8, 0, [4, 4])])
def test_pieces_leave_nobody_alone(count: int, first: int, sizes: list[int]) -> None:
    pieces = chunks(count, 4, first)
    assert [len(piece) for piece in pieces] == sizes
    assert torch.equal(torch.cat(pieces), torch.arange(first, first + count))
