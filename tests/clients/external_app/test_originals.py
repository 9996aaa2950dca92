"""``save_originals``: the batches stay the same, and the file holds their pixels in their order."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from clients import save_originals

MEAN, STD = (0.4, 0.5, 0.6), (0.2, 0.25, 0.3)
WIDE = (1, 3, 1, 1)


def pixels(count: int = 7) -> Tensor:
    return torch.rand(count, 3, 5, 4, generator=torch.Generator().manual_seed(0))


def normalised(images: Tensor) -> Tensor:
    return (images - torch.tensor(MEAN).view(WIDE)) / torch.tensor(STD).view(WIDE)


def loader(images: Tensor, seed: int = 3) -> DataLoader[Any]:
    data = TensorDataset(images, torch.arange(len(images)))
    return DataLoader(data, batch_size=3, shuffle=True, generator=torch.Generator().manual_seed(seed))


def test_a_shuffled_loader_yields_the_same_batches_and_is_kept_in_their_order(tmp_path: Path) -> None:
    plain = [batch[1].tolist() for batch in loader(pixels())]
    kept = save_originals(loader(normalised(pixels())), tmp_path / "o", 11, server_round=2, mean=MEAN, std=STD)
    assert len(kept) == 3
    assert len(kept.dataset) == 7
    assert [batch[1].tolist() for batch in kept] == plain
    file = tmp_path / "o" / "round-0002-node-11.safetensors"
    found, order = load_file(file), [label for batch in plain for label in batch]
    assert found["labels"].tolist() == order
    torch.testing.assert_close(found["images"], pixels()[order], atol=1e-6, rtol=0)
    with safe_open(file, framework="pt") as opened:
        stated = json.loads(opened.metadata()["normalisation"])
    assert stated == {name: pytest.approx(value) for name, value in (("mean", MEAN), ("std", STD))}


def test_only_the_first_pass_is_kept_and_one_that_training_leaves_as_far_as_it_went(tmp_path: Path) -> None:
    kept = save_originals(loader(pixels()), tmp_path, 5)
    first = next(iter(kept))[1].tolist()
    file = tmp_path / "node-5.safetensors"
    assert load_file(file)["labels"].tolist() == first
    assert sum(len(batch[1]) for batch in kept) == 7
    assert load_file(file)["labels"].tolist() == first


def test_mappings_and_whole_numbers_are_read(tmp_path: Path) -> None:
    levels = (pixels(2) * 255).round().to(torch.uint8)
    batches = [{"img": levels, "label": torch.tensor([1, 0]), "more": "text"}]
    assert list(save_originals(batches, tmp_path, 1, mean=0.5, std=0.5)) == batches
    torch.testing.assert_close(load_file(tmp_path / "node-1.safetensors")["images"], levels.float() / 255)


def test_no_random_number_is_drawn(tmp_path: Path) -> None:
    before = torch.get_rng_state()
    list(save_originals([(pixels(), torch.arange(7))], tmp_path, 1))
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"folder": "here"}, "folder is 'here'; allowed: an absolute path"),
        ({"std": 0.0}, "save_originals: std is 0.0"),
        (
            {"loader": [(normalised(pixels()), torch.arange(7))]},
            "expected .0, 1.: give the mean and std of your Normalize",
        ),
        ({"loader": [(pixels(), torch.arange(6))]}, r"images \(7, 3, 5, 4\) and classes \(6,\)"),
        ({"loader": [pixels()]}, "a batch is Tensor; expected"),
        ({"loader": [{"text": 1}]}, "a batch is .'text'.; expected"),
    ],
)
def test_refuses_what_fits_no_image(tmp_path: Path, changes: dict[str, Any], told: str) -> None:
    values = {"loader": [(pixels(), torch.arange(7))], "folder": tmp_path / "o", "node_id": 1} | changes
    with pytest.raises((TypeError, ValueError), match=told):
        list(save_originals(**values))
    assert not (tmp_path / "o").exists()
