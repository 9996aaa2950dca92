"""The two parts of the data: disjoint, of the same classes, and what a run loads."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from clients.data.datasets import load_dataset
from simulations.search.measured.pools import HELD_OUT, SEARCH, SHARES, parts_of, split, write_pools

DATA = {"dataset": "mnist-5k", "data_dir": "", "image_size": 0, "train_limit": 0, "test_limit": 0, "seed": 3}


def test_every_example_is_in_one_part_and_classes_are_shared_out_alike() -> None:
    labels = np.repeat(np.arange(5), [10, 20, 50, 100, 1000])
    rows = split(labels, 0)
    assert sorted(np.concatenate(list(rows.values())).tolist()) == list(range(len(labels)))
    for part, share in SHARES.items():
        assert np.bincount(labels[rows[part]]).tolist() == [round(share * n) for n in (10, 20, 50, 100, 1000)]


def test_another_seed_shares_out_others() -> None:
    labels = np.repeat(np.arange(2), 100)
    assert set(split(labels, 0)[SEARCH]) != set(split(labels, 1)[SEARCH])


def test_no_image_is_in_both_parts() -> None:
    parts = parts_of(**DATA)

    def seen(part: str) -> set[bytes]:
        return {image.numpy().tobytes() for examples in parts[part] for image in examples.images}

    assert not seen(SEARCH) & seen(HELD_OUT)


def test_a_run_loads_the_parts_by_the_written_module(tmp_path: Path) -> None:
    places = write_pools(tmp_path, DATA | {"train_limit": 30, "test_limit": 20})
    whole = parts_of(**DATA | {"train_limit": 30, "test_limit": 20})
    for part, place in places.items():
        data = load_dataset(place)
        assert (len(data.train), len(data.test)) == (30, 20)
        torch.testing.assert_close(data.train.images, whole[part][0].images)
        torch.testing.assert_close(data.test.labels, whole[part][1].labels)
