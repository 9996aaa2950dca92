"""Clients whose images do not fit into memory, and the clients' side of scenarios."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from attacks.local_model import shared_tensors
from clients.data.images import DataError, StoredImages
from clients.federated.client import LocalClient
from clients.federated.local_training import train_alone
from clients.scoring.audit import audit_baselines
from clients.scoring.null_baselines import means_of
from clients.task.auxiliary import Auxiliary
from clients.task.batches import chunks
from clients.task.local_data import LocalData
from clients.task.scenarios import client_side, client_sides
from defenses.registry import RegistryError
from tests.clients.federated.test_client import TASK as PLAIN
from tests.other_package import offer

TASK = PLAIN.but(dataset="photos", image_size=20, train_limit=120, test_limit=40, local_epochs=2, momentum=0.9)
CROPPED = {"crop_padding": 2, "horizontal_flip": True}
PIPELINES: dict[str, dict[str, Any]] = {
    "VisualMixer(window_lower=2, window_upper=4)": CROPPED,
    "ImageNoise(std=0.1) | Downsample(factor=5) | DPSGD(noise_multiplier=1.0)": {},
    "InstaHide()": CROPPED,
}
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


def test_training_probes_audits_and_scores_are_the_same() -> None:
    for pipeline, cropped in PIPELINES.items():
        held, stored = both(pipeline=pipeline, **cropped)
        weights = {name: tensor.clone() for name, tensor in shared_tensors(held.task.plan.build_model()).items()}
        assert equal(held.train(weights, {}).updates[0], stored.train(weights, {}).updates[0]), pipeline
        for left, right in zip(held.probe(weights, {}).updates, stored.probe(weights, {}).updates, strict=True):
            assert equal(left, right), pipeline
        assert held.evaluate(weights) == stored.evaluate(weights)
        for one, other in ((held.trained_views(), stored.trained_views()), (held.probed(1), stored.probed(1))):
            assert torch.equal(one.original.images, other.original.images)
            assert torch.equal(one.seen.images, other.seen.images)
            assert torch.equal(one.seen.targets, other.seen.targets)
        assert audit_baselines(held, "probe", pictures=False) == audit_baselines(stored, "probe", pictures=False)


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


def test_the_mean_image_is_the_mean_of_all_and_pieces_leave_no_example_alone() -> None:
    for one in both():
        mean = means_of(one.data, lambda positions, _, one=one: one.data.plain(positions).images, 7).mean()
        torch.testing.assert_close(mean, one.data.originals().images.mean(0), atol=1e-6, rtol=0)
    for count, first, sizes in ((7, 0, [4, 3]), (9, 2, [4, 5]), (1, 0, [1]), (8, 0, [4, 4])):
        pieces = chunks(count, 4, first)
        assert [len(piece) for piece in pieces] == sizes
        assert torch.equal(torch.cat(pieces), torch.arange(first, first + count))


GROUP = "fedveil.clients"
SIDE = (
    "from clients.task.local_data import Client\nfrom clients.task.scenarios import ClientSide\n"
    "from clients.task.task import Plan\n"
    "MINE = ClientSide({}, Client, Plan, {})"
)


def test_a_side_of_another_package_is_one_like_the_others_and_replaces_none(tmp_path: Path) -> None:
    for number, (source, why) in enumerate((
        (SIDE.format("'mine'", "{'train.upload': print}"), ""),
        # A node would run a stranger's code in place of what protects its images.
        (SIDE.format("'split'", "{}"), ": there is another scenario 'split'; rename one of them"),
        (SIDE.format("'mine'", "{'query.audit': print}"), " cannot be loaded: ValueError: query.audit is a message of all"),
        ("MINE = 'split'", " is no ClientSide but str"),
    )):  # fmt: skip
        folder = tmp_path / str(number)
        folder.mkdir()
        client_sides.cache_clear()  # entry points are read once in a process
        with pytest.MonkeyPatch.context() as patch:
            where = offer(patch, folder, GROUP, source)
            if why:
                with pytest.raises(RegistryError, match=re.escape(f"{where}{why}")):
                    client_sides()
            else:
                assert list(client_sides()) == ["audited", "federated", "inference", "outsourced", "split", "mine"]
        client_sides.cache_clear()
    with pytest.raises(RuntimeError, match=r"'mine' is not known to this node; known: audited, federated, inference"):
        client_side("mine")
