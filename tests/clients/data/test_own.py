"""Data sets of one's own."""

import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from clients.data.datasets import load_dataset
from clients.data.images import DataError

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
