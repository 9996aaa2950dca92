"""Data sets by their names at Hugging Face, without a network."""

import socket
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from clients.data.datasets import load_dataset
from clients.data.images import DataError
from clients.wire.schema import key_of
from simulations.experiment.experiment import Experiment
from simulations.settings.errors import ConfigError

datasets = pytest.importorskip("datasets", reason="datasets is not installed: uv sync --group dev")

GREY = np.arange(12 * 6 * 6).reshape(12, 6, 6).astype(np.uint8)


def table(count: int) -> Any:
    features = datasets.Features(image=datasets.Image(), label=datasets.ClassLabel(names=["a", "b", "c"]))
    rows = {"image": list(GREY[:count]), "label": [at % 3 for at in range(count)]}
    return datasets.Dataset.from_dict(rows, features=features)


def saved(root: Path, **parts: Any) -> None:
    datasets.DatasetDict(parts).save_to_disk(str(root / "somebody" / "things"))


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("the network was asked")

    monkeypatch.setattr(socket.socket, "connect", refuse)


def test_a_saved_data_set_is_read_as_it_is(tmp_path: Path) -> None:
    for last in ("test", "validation"):
        saved(tmp_path / last, train=table(12), **{last: table(6)})
        data = load_dataset("hf:somebody/things", data_dir=str(tmp_path / last))
        assert torch.equal(data.train.images[:], torch.from_numpy(GREY)[:, None])
        assert data.train.labels.tolist() == [at % 3 for at in range(12)]
        assert (len(data.test), data.class_names) == (6, ("a", "b", "c"))


def test_what_is_nowhere_or_has_other_columns_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DataError, match=r"there is no folder .*somebody/things; .*or download=true"):
        load_dataset("hf:somebody/things", data_dir=str(tmp_path))
    saved(tmp_path, train=table(6))
    with pytest.raises(DataError, match="has the parts train; train, and test or validation, are expected"):
        load_dataset("hf:somebody/things", data_dir=str(tmp_path))


NO_HUB_NAMES = [
    "imagefolder", "ImageFolder", "imagefolder/", "csv", "json", "parquet", "text", "webdataset", "arrow", "xml", "sql",
    "", "/", "a/", "/a", "a//b", "a/b/", "a/b/c", "./a/b", "./a", "a/.", "a/..", "..", "../a", "../../a", "a/../b", ".a/b", "~/a",
    "/etc/passwd", "//a", "~root/a", "$HOME/a", "a/b@main", "a/b#x", "a/b:config", "a/b:x.y", "a.b/c:d", "x.py:f", "a b/c", "a/b\n",
    "a\\b", "a/b*", "a/[b]", "é/b", "a/b\x00", "a--b/c", "file:///a/b", "https://a.b/c", "hf://datasets/a/b", "zip://a::b",
    "buckets/a", "Buckets/a", "a/" + "b" * 96,
]  # fmt: skip


def test_a_name_that_hugging_face_has_not_reaches_no_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("the package was asked")

    monkeypatch.chdir(tmp_path)
    for name in ("load_dataset", "load_from_disk"):
        monkeypatch.setattr(datasets, name, refuse)
    for name in NO_HUB_NAMES:
        for download in (False, True):
            with pytest.raises(DataError, match="allowed: hf:owner/name"):
                load_dataset(f"hf:{name}", download=download)
        for setting in ("dataset", "auxiliary_data"):
            with pytest.raises(ConfigError, match=f"{key_of(setting)}.*allowed: hf:owner/name"):
                Experiment.of(**{setting: f"hf:{name}"})
    with pytest.raises(DataError, match="unknown data set 'HF:a/b'"):
        load_dataset("HF:a/b")


def test_only_what_the_operator_offered_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Every folder that "datasets" could take the name for holds a data set: a fault would read it.
    asked: list[str] = []

    def from_network(name: str) -> None:
        asked.append(name)
        raise ConnectionError("no network")

    monkeypatch.setattr(datasets, "load_dataset", from_network)
    work, offered = tmp_path / "work", tmp_path / "offered"
    for root in (work, tmp_path / "elsewhere", offered):
        saved(root, train=table(12), test=table(6))
    part = (offered / "somebody").rename(offered / "partly") / "things" / "test"
    part.symlink_to(part.rename(tmp_path / "test"))
    (offered / "linked").mkdir(parents=True)
    (offered / "somebody").symlink_to(tmp_path / "elsewhere" / "somebody")
    (offered / "linked" / "things").symlink_to(tmp_path / "elsewhere" / "somebody" / "things")
    monkeypatch.chdir(work)
    for name in ("somebody/things", "linked/things", "partly/things"):
        with pytest.raises(DataError, match=f"there is no folder {offered}/{name}"):
            load_dataset(f"hf:{name}", data_dir=str(offered))
    with pytest.raises(DataError, match="lies below the working directory too"):
        load_dataset("hf:somebody/things", data_dir=str(offered), download=True)
    assert not asked
    assert len(load_dataset("hf:somebody/things", data_dir=str(tmp_path / "elsewhere")).train) == 12
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError, match="cannot be read from Hugging Face: no network"):
        load_dataset("hf:somebody/things", data_dir=str(offered), download=True)
    assert asked == ["somebody/things"], "with download, and nothing else in the way"


def test_a_picture_that_a_hub_data_set_names_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for at in range(4):
        Image.fromarray(GREY[at]).save(tmp_path / f"{at}.png")
    rows = table(4).cast_column("image", datasets.Image(decode=False)).to_dict()
    rows["image"] = [{"bytes": None, "path": str(tmp_path / f"{at}.png")} for at in range(4)]
    part = datasets.Dataset.from_dict(rows, features=table(4).features)
    monkeypatch.setattr(datasets, "load_dataset", lambda name: {"train": part, "test": part})
    with pytest.raises(DataError, match=r"train\[0\] raises .*names a file and holds no image"):
        load_dataset("hf:somebody/things", data_dir=str(tmp_path), download=True)


def test_a_missing_package_is_named_with_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(DataError, match=r'datasets is not installed: pip install "fedveil\[huggingface\]"'):
        load_dataset("hf:somebody/things", data_dir=str(tmp_path))
