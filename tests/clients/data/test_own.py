"""Data sets of one's own, and by their names at Hugging Face without a network."""

import socket
import sys
from pathlib import Path

import datasets
import numpy as np
import pytest
import torch
from PIL import Image

from clients.data.datasets import load_dataset
from clients.data.images import DataError
from clients.wire.schema import key_of
from simulations.experiment.experiment import Experiment
from simulations.settings.errors import ConfigError

CODE = """
import numpy as np
import torch
from PIL import Image
from torch.utils.data import Dataset, TensorDataset

grey = np.arange(10 * 6 * 6).reshape(10, 6, 6).astype(np.uint8)
labels = [at % 3 for at in range(10)]


class Given(Dataset):
    classes = ["a", "b", "c"]

    def __init__(self, form=Image.fromarray):
        self.form = form

    def __len__(self):
        return 10

    def __getitem__(self, at):
        return self.form(grey[at]), labels[at]


def twice(part):
    return part, list(part)


def of(images):
    return TensorDataset(images, torch.tensor(labels)), TensorDataset(images, torch.tensor(labels))


def script():
    raise SystemExit(0)


def same():
    data = Given()
    return data, data


black = torch.zeros(1, 6, 6)
pictures = lambda: (Given(), Given())
arrays = lambda: [Given(lambda one: one), Given(lambda one: one[..., None])]
floats = lambda: (Given(lambda one: torch.tensor(one / 255.0).float()[None]), Given(lambda one: torch.tensor(one)[None]))
tensors = lambda: of(torch.rand(10, 3, 6, 6))
normalised = lambda: of(torch.randn(10, 3, 6, 6))
one = lambda: Given()
uneven = lambda: [Given(lambda one: one[: 2 + one[0, 0] % 5]) for _ in range(2)]
unlabelled = lambda: twice([black] * 4)
needs = lambda folder: pictures()
empty = lambda: ([], [])
augmented = lambda: [Given(lambda one: np.random.permutation(one)) for _ in range(2)]
huge = lambda: twice([(black, 10**12)] * 2)
lone = lambda: twice([(black, 0)] * 2)
palette = Image.fromarray(np.arange(48, dtype=np.uint8).reshape(4, 4, 3) * 5).quantize(16)
palettes = lambda: twice([(palette, 0), (palette, 1)])
levels = Image.fromarray(np.arange(0, 65536, 4096, dtype=np.uint16).reshape(4, 4))
deep = lambda: twice([(levels, 0), (levels, 1)])
wide = lambda: twice([(np.zeros((4, 4), np.int64), 0)])
labelled = lambda *classes: twice([(black, one) for one in classes])
from_one = lambda: labelled(1, 2, 3)
ignored = lambda: labelled(0, 1, 2, 255)
unknown = lambda: labelled(0, 1, -1)


class Columns(Given):
    def __init__(self, targets):
        super().__init__()
        self.targets = targets


unnamed = lambda: [Columns([1 + one for one in labels]) for _ in range(2)]
columns = lambda: [Columns(np.zeros((10, 2), int)) for _ in range(2)]
fractions = lambda: [Columns(np.zeros(10)) for _ in range(2)]
ragged = lambda: [Columns([[0], *[[0, 1]] * 9]) for _ in range(2)]
unsigned = lambda: [Columns(np.full(10, 2**63, np.uint64)) for _ in range(2)]
column = lambda: [Columns(torch.tensor(labels)[:, None]) for _ in range(2)]
"""


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("sys.path", [*sys.path])  # to which the file's folder is added
    path = tmp_path / f"data_{tmp_path.name}.py"
    path.write_text(CODE)
    return path


def test_every_form_of_an_image_is_the_same_image(file: Path) -> None:
    for name in ("pictures", "arrays", "floats", "column"):
        data = load_dataset(f"{file}:{name}")
        expected = torch.arange(360).remainder(256).to(torch.uint8).view(10, 1, 6, 6)
        assert torch.equal(data.train.images[torch.arange(10)], expected)
        assert torch.equal(data.test.images[torch.arange(10)], expected)
        assert data.train.labels.tolist() == [at % 3 for at in range(10)]
        assert data.class_names == ("a", "b", "c")
        assert data.mean == pytest.approx([float(expected.float().mean()) / 255], abs=1e-4)
    data = load_dataset(f"{file}:tensors", image_size=4, train_limit=6)
    assert tuple(data.input_shape) == (3, 4, 4)
    assert (len(data.train), len(data.test), data.num_classes) == (6, 10, 3)


def test_what_is_no_data_set_is_refused_by_its_place(file: Path, subtests: pytest.Subtests) -> None:
    for name, why in {
        "normalised": r"floats in \[0, 1\] \(not normalised\), are expected",
        "one": r"returns Given; \(train, test\) of two data sets is expected", "uneven": "one size is expected",
        "unlabelled": r"train\[0\] is Tensor; \(image, class\) is expected",
        "needs": "needs folder; given are no arguments alone", "empty": "train has no examples",
        "wide": "is ndarray of int64",
        "deep": "holds whole numbers of unknown range; convert it to 8-bit levels, or to floats",
        "from_one": r"of the classes 0 to 3, 0 has no example; number them .* or name all in a list 'classes'",
        "ignored": r"of the classes 0 to 255, 3, 4, 5 and 249 more have no example",
        "unknown": r"the class -1, and 0 is the lowest; leave examples without a class out",
        "unnamed": r"has the class 3, and 'classes' names 3, 0 to 2",
        "columns": r"has labels of shape \(10, 2\); one class for each of the 10 examples is expected",
        "ragged": "has labels of several lengths; one class for each example is expected",
        "unsigned": "has the class 9223372036854775808; allowed: 0 to 99999",
        "fractions": r"has labels of float64; whole numbers from 0 are expected",
        "same": "returns the same object as train and as test",
        "augmented": r"train\[0\] is another image at every reading; leave augmentations to crop-padding",
        "huge": "has the class 1000000000000; allowed: 0 to 99999",
        "lone": "has only the class 0; allowed: 2 or more classes", "script": r"script\(\) raises SystemExit: 0",
    }.items():  # fmt: skip
        with subtests.test(name), pytest.raises(DataError, match=why):
            load_dataset(f"{file}:{name}")


def test_palettes_are_shown_by_their_colours(file: Path) -> None:
    shown = load_dataset(f"{file}:palettes").train.images[torch.tensor([0])]
    assert np.array_equal(shown[0].permute(1, 2, 0).numpy(), np.arange(48).reshape(4, 4, 3) * 5)


GREY = np.arange(12 * 6 * 6).reshape(12, 6, 6).astype(np.uint8)


def table(count: int) -> datasets.Dataset:
    features = datasets.Features(image=datasets.Image(), label=datasets.ClassLabel(names=["a", "b", "c"]))
    rows = {"image": list(GREY[:count]), "label": [at % 3 for at in range(count)]}
    return datasets.Dataset.from_dict(rows, features=features)


def saved(root: Path, **parts: datasets.Dataset) -> None:
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


def test_a_picture_that_a_data_set_of_the_hub_names_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for at in range(4):
        Image.fromarray(GREY[at]).save(tmp_path / f"{at}.png")
    rows = table(4).cast_column("image", datasets.Image(decode=False)).to_dict()
    rows["image"] = [{"bytes": None, "path": str(tmp_path / f"{at}.png")} for at in range(4)]
    part = datasets.Dataset.from_dict(rows, features=table(4).features)
    monkeypatch.setattr(datasets, "load_dataset", lambda name: {"train": part, "test": part})
    with pytest.raises(DataError, match=r"train\[0\] raises .*names a file and holds no image"):
        load_dataset("hf:somebody/things", data_dir=str(tmp_path), download=True)
