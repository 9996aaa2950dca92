"""Data sets by their names at Hugging Face, without a network: from a folder and from the cache."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest
import torch
from datasets.arrow_writer import ArrowWriter

from clients.data.datasets import DataError, load_dataset

GREY = np.arange(12 * 6 * 6).reshape(12, 6, 6).astype(np.uint8)


def table(count: int, **more: Any) -> datasets.Dataset:
    features = datasets.Features(image=datasets.Image(), label=datasets.ClassLabel(names=["a", "b", "c"]))
    data = datasets.Dataset.from_dict(
        {"image": list(GREY[:count]), "label": [at % 3 for at in range(count)]}, features=features
    )
    for key, value in more.items():
        data = data.add_column(key, [value] * count)
    return data


def saved(root: Path, **parts: datasets.Dataset) -> None:
    datasets.DatasetDict(parts).save_to_disk(str(root / "somebody" / "things"))


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("the network was asked")

    monkeypatch.setattr(socket.socket, "connect", refuse)


@pytest.mark.parametrize("last", ["test", "validation"])
def test_a_saved_data_set_is_read_as_it_is(tmp_path: Path, last: str) -> None:
    saved(tmp_path, train=table(12), **{last: table(6)})
    data = load_dataset("hf:somebody/things", data_dir=str(tmp_path))
    assert torch.equal(data.train.images[:], torch.from_numpy(GREY)[:, None])
    assert data.train.labels.tolist() == [at % 3 for at in range(12)]
    assert (len(data.test), data.class_names) == (6, ("a", "b", "c"))


def test_the_cache_is_read_without_a_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path))
    folder = tmp_path / "somebody___things" / "default" / "0.0.0" / "abc"
    for part, count in (("train", 12), ("test", 6)):
        folder.mkdir(parents=True, exist_ok=True)
        with ArrowWriter(path=str(folder / f"things-{part}.arrow"), features=table(1).features) as writer:
            for row in table(count).with_format("arrow").iter(batch_size=count):
                writer.write_table(row)
            writer.finalize()
    splits = {
        part: datasets.SplitInfo(part, num_examples=count, dataset_name="things")
        for part, count in (("train", 12), ("test", 6))
    }
    datasets.DatasetInfo(
        features=table(1).features, splits=datasets.SplitDict(splits), config_name="default", dataset_name="things",
        version="0.0.0", builder_name="parquet",
    ).write_to_directory(str(folder))  # fmt: skip
    data = load_dataset("hf:somebody/things")
    assert torch.equal(data.train.images[:], torch.from_numpy(GREY)[:, None])
    assert len(data.test) == 6


def test_what_is_nowhere_or_has_other_columns_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "cache"))
    with pytest.raises(DataError, match=r"neither .*somebody/things nor the cache .* holds it .*or download=true"):
        load_dataset("hf:somebody/things", data_dir=str(tmp_path))
    assert not datasets.config.HF_HUB_OFFLINE
    for name in ("hf", "hf:a/b/c", "hf:../things"):
        with pytest.raises(DataError, match="allowed: hf:owner/name"):
            load_dataset(name)
    saved(tmp_path, train=table(6))
    with pytest.raises(DataError, match="has the parts train; train, and test or validation, are expected"):
        load_dataset("hf:somebody/things", data_dir=str(tmp_path))


def test_a_data_set_without_classes_is_refused(tmp_path: Path) -> None:
    saved(tmp_path, train=table(6).remove_columns("label"), test=table(6).remove_columns("label"))
    with pytest.raises(DataError, match="has 0 columns of class labels among image; exactly one is expected"):
        load_dataset("hf:somebody/things", data_dir=str(tmp_path))
