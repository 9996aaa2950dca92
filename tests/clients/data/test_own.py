"""Data sets of one's own: pictures, tensors and arrays become the same images, and what is none is refused by its place."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from clients.data.datasets import DataError, load_dataset

CODE = """
import numpy as np
import torch
from PIL import Image
from torch.utils.data import Dataset, TensorDataset

grey = np.arange(10 * 6 * 6).reshape(10, 6, 6).astype(np.uint8)
labels = [at % 3 for at in range(10)]


class Given(Dataset):
    classes = ["a", "b", "c"]

    def __init__(self, form):
        self.form = form

    def __len__(self):
        return 10

    def __getitem__(self, at):
        return self.form(grey[at]), labels[at]


def pictures():
    return Given(Image.fromarray), Given(Image.fromarray)


def arrays():
    return [Given(lambda one: one), Given(lambda one: one[..., None])]


def floats():
    return Given(lambda one: torch.tensor(one / 255.0).float()[None]), Given(lambda one: torch.tensor(one)[None])


def tensors():
    data = TensorDataset(torch.rand(10, 3, 6, 6), torch.tensor(labels))
    return data, TensorDataset(*data.tensors)


def normalised():
    data = TensorDataset(torch.randn(10, 3, 6, 6), torch.tensor(labels))
    return data, TensorDataset(*data.tensors)


def one():
    return Given(Image.fromarray)


def uneven():
    return [Given(lambda one: one[: 2 + one[0, 0] % 5]) for _ in range(2)]


def unlabelled():
    return [torch.zeros(1, 6, 6)] * 4, [torch.zeros(1, 6, 6)] * 4


def needs(folder):
    return pictures()


def empty():
    return [], []


def twice():
    data = Given(Image.fromarray)
    return data, data


def augmented():
    return [Given(lambda one: np.random.permutation(one)) for _ in range(2)]


def huge():
    data = [(torch.zeros(1, 6, 6), 10**12)] * 2
    return data, list(data)


def ninety_nine():
    return [(torch.zeros(1, 6, 6), 99)] * 4, [(torch.zeros(1, 6, 6), 99)] * 4


def lone():
    data = [(torch.zeros(1, 6, 6), 0)] * 2
    return data, list(data)


def negative():
    data = [(torch.zeros(1, 6, 6), at) for at in (0, -1)]
    return data, list(data)


def script():
    raise SystemExit(0)
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / f"data_{tmp_path.name}.py"
    path.write_text(CODE)
    return path


@pytest.mark.parametrize("name", ["pictures", "arrays", "floats"])
def test_every_form_of_an_image_is_the_same_image(file: Path, name: str) -> None:
    data = load_dataset(f"{file}:{name}")
    expected = torch.arange(360).remainder(256).to(torch.uint8).view(10, 1, 6, 6)
    assert torch.equal(data.train.images[torch.arange(10)], expected)
    assert torch.equal(data.test.images[torch.arange(10)], expected)
    assert data.train.labels.tolist() == [at % 3 for at in range(10)]
    assert data.class_names == ("a", "b", "c")
    assert data.mean == pytest.approx([float(expected.float().mean()) / 255], abs=1e-4)


def test_colours_limits_and_sizes(file: Path) -> None:
    data = load_dataset(f"{file}:tensors", image_size=4, train_limit=6)
    assert tuple(data.input_shape) == (3, 4, 4)
    assert (len(data.train), len(data.test), data.num_classes) == (6, 10, 3)


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("normalised", r"floats in \[0, 1\] \(not normalised\), are expected"),
        ("one", r"returns Given; \(train, test\) of two data sets is expected"),
        ("uneven", "one size is expected"),
        ("unlabelled", r"train\[0\] is Tensor; \(image, class\) is expected"),
        ("needs", "needs folder; given are no arguments alone"),
        ("empty", "train has no examples"),
        ("twice", "returns the same object as train and as test"),
        ("augmented", r"train\[0\] is another image at every reading; leave augmentations to crop-padding"),
        ("huge", "has the class 1000000000000; allowed: 0 to 99999"),
        ("lone", "has only the class 0; allowed: 2 or more classes"),
        ("ninety_nine", "has only the class 99; allowed: 2 or more classes"),
        ("negative", r"classes of .*, train are int64 of shape \(2,\), down to -1; whole numbers from 0 are expected"),
        ("script", r"script\(\) raises SystemExit: 0"),
        ("missing", "has no 'missing'; in it are Given, arrays"),
    ],
)
def test_what_is_no_data_set_is_refused_by_its_place(file: Path, name: str, why: str) -> None:
    with pytest.raises(DataError, match=why):
        load_dataset(f"{file}:{name}")


def test_palettes_and_deep_grey_are_shown_as_they_look(file: Path) -> None:
    """As pictures in folders are: a palette by its colours, 16 bits scaled to 8."""
    file.write_text("""
import numpy as np
from PIL import Image

def part():
    colours = Image.fromarray(np.arange(48, dtype=np.uint8).reshape(4, 4, 3) * 5).quantize(16)
    return [(colours, 0), (colours, 1)]

def deep():
    levels = Image.fromarray(np.arange(0, 65536, 4096, dtype=np.uint16).reshape(4, 4))
    return [(levels, 0), (levels, 1)]

def palettes():
    return part(), part()

def grey():
    return deep(), deep()

def wide():
    return [(np.zeros((4, 4), np.int64), 0)], [(np.zeros((4, 4), np.int64), 0)]
""")
    shown = load_dataset(f"{file}:palettes").train.images[torch.tensor([0])]
    wanted = np.arange(48).reshape(4, 4, 3) * 5
    assert np.array_equal(shown[0].permute(1, 2, 0).numpy(), wanted)
    levels = load_dataset(f"{file}:grey").train.images[torch.tensor([0])].flatten().tolist()
    assert levels == [round(value / 257) for value in range(0, 65536, 4096)]
    with pytest.raises(DataError, match="is ndarray of int64"):
        load_dataset(f"{file}:wide")
