"""Two attributes of each example: balance, disjoint parts, and frames that show what their labels say."""

import itertools
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torchvision.transforms.functional import pil_to_tensor  # type: ignore[import-untyped]

from clients.data.composed import balanced, binary_attribute, paired
from clients.data.datasets import load_dataset
from clients.data.images import DataError, ImageData, with_channels
from clients.task.auxiliary import Auxiliary
from simulations.experiment.experiment import Experiment
from tests.clients.data.data_files import write_celeba, write_mnist

LABELS = st.lists(st.integers(0, 1), min_size=4, max_size=60)


@pytest.fixture(autouse=True)
def _forget() -> Iterator[None]:
    yield
    load_dataset.cache_clear()


def joint(part: ImageData) -> list[int]:
    assert part.sensitive is not None
    return (2 * part.labels + part.sensitive).bincount(minlength=4).tolist()


@given(LABELS, st.data())
@settings(max_examples=80)
def test_balanced_rows_are_the_first_of_each_combination(primary: list[int], data: st.DataObject) -> None:
    sensitive = data.draw(st.lists(st.integers(0, 1), min_size=len(primary), max_size=len(primary)))
    pairs = list(zip(primary, sensitive, strict=True))
    found = {pair: [row for row, one in enumerate(pairs) if one == pair] for pair in itertools.product((0, 1), (0, 1))}
    rarest = min(map(len, found.values()))
    if rarest == 0:
        with pytest.raises(DataError, match=r"every combination .* must occur; there are \(0, 0\): "):
            balanced("these", np.array(primary), np.array(sensitive))
    else:
        expected = sorted(row for rows in found.values() for row in rows[:rarest])
        assert balanced("these", np.array(primary), np.array(sensitive)).tolist() == expected


@given(LABELS, LABELS, st.integers(0, 99))
@settings(max_examples=80)
def test_pairs_use_nothing_twice_and_are_balanced(first: list[int], second: list[int], seed: int) -> None:
    sources = [np.array([*values, -1, 0, 0, 1, 1]) for values in (first, second)]
    rows = paired("these", *sources, np.random.default_rng(seed))
    for chosen in rows:
        assert len(set(chosen.tolist())) == len(chosen)
    # As many as possible: each combination takes half of the rarest value of any attribute.
    assert len(rows[0]) == len(rows[1]) == 4 * (min((values == v).sum() for values in sources for v in (0, 1)) // 2)
    pairs = [source[chosen] for source, chosen in zip(sources, rows, strict=True)]
    assert (2 * pairs[0] + pairs[1]).tolist() == [0, 1, 2, 3] * (len(rows[0]) // 4)


def test_an_attribute_is_two_groups_of_classes(subtests: pytest.Subtests) -> None:
    values, names = binary_attribute("set", "20-3", ["cat", "dog", "cow", "emu"])
    assert values.tolist() == [0, -1, 0, 1]
    assert names == ("cat or cow", "emu")
    for text in ("", "01", "0-", "0-1-2", "0-0", "00-1", "0-4", "0-x", "0-3", "0 - 1"):
        with subtests.test(text), pytest.raises(DataError, match=r".* 01-2, from: 0 cat, 1 dog, 2 cow$"):
            binary_attribute("set", text, ["cat", "dog", "cow", ""])
    with pytest.raises(DataError, match=r"these: both values .* two examples at least; there are \[2, 1, 2, 2\]"):
        paired("these", np.array([0, 0, 1]), np.array([0, 0, 1, 1]), np.random.default_rng(0))


def blocks(images: Tensor) -> list[dict[bytes, int]]:
    cut = images.unfold(2, 28, 28).unfold(3, 28, 28).reshape(len(images), 4, 28, 28)
    return [{block.numpy().tobytes(): place for place, block in enumerate(frame) if block.any()} for frame in cut]


@pytest.fixture
def garments(tmp_path: Path) -> Path:
    generator = np.random.default_rng(0)
    images = [generator.integers(1, 256, (count, 28, 28), dtype=np.uint8) for count in (240, 80)]
    write_mnist(tmp_path, *((part, (np.arange(len(part)) % 9).astype(np.uint8)) for part in images))
    return tmp_path


def test_a_garment_and_a_digit_are_in_two_quadrants_as_labelled(garments: Path) -> None:
    data = load_dataset("garment-digit:0-12,3-8", data_dir=str(garments))
    assert data.class_names == ("T-shirt/top", "Trouser or Pullover")
    clothes = load_dataset("fashion-mnist", data_dir=str(garments))
    digits = load_dataset("mnist-5k")
    seen: list[set[bytes]] = []
    for part, cloth, digit in ((data.train, clothes.train, digits.train), (data.test, clothes.test, digits.test)):
        known = [
            {image.numpy().tobytes(): int(label) for image, label in zip(one.images[:], one.labels, strict=True)}
            for one in (cloth, digit)
        ]
        used: set[bytes] = set()
        places = set()
        for found, primary, sensitive in zip(blocks(part.images[:]), part.labels, part.sensitive, strict=True):
            assert len(found) == 2
            garment, number = (next(block for block in found if block in one) for one in known)
            assert (known[0][garment] in (1, 2)) == primary
            assert {3: 0, 8: 1}[known[1][number]] == sensitive
            places.add((found[garment], found[number]))
            assert not used & found.keys()
            used |= found.keys()
        # 27 of the 240 garments and 9 of the 80 are T-shirts: 13 and 4 for each combination.
        assert joint(part) == ([13] * 4 if part is data.train else [4] * 4)
        assert len(places) > 6  # Of 12: neither object has a place of its own.
        seen.append(used)
    assert not seen[0] & seen[1]


def test_frames_are_the_same_for_all_can_be_scaled_and_stay_balanced_under_a_limit(garments: Path) -> None:
    first = load_dataset("garment-digit", data_dir=str(garments))
    load_dataset.cache_clear()
    assert torch.equal(first.train.images[:], load_dataset("garment-digit", data_dir=str(garments)).train.images[:])
    assert first.input_shape == (1, 56, 56)
    assert load_dataset("garment-digit", data_dir=str(garments), image_size=64).input_shape == (1, 64, 64)
    frames = first.train.images[:].double() / 255
    assert first.mean == pytest.approx((frames.mean().item(),), rel=1e-5)
    assert first.std == pytest.approx((frames.std().item(),), rel=1e-5)
    limited = load_dataset("garment-digit", data_dir=str(garments), train_limit=40, test_limit=6)
    assert joint(limited.train) == [10] * 4
    assert sorted(joint(limited.test)) == [1, 1, 2, 2]


def test_attributes_that_cannot_be_had_are_refused(garments: Path, tmp_path: Path, subtests: pytest.Subtests) -> None:
    attributes = {"Male": [1, 1, -1, 1, -1], "Smiling": [1, -1, -1, 1, 1], "Young": [1] * 5}
    write_celeba(tmp_path / "celeba", [0, 0, 0, 0, 2], attributes)
    for name, changes, message in (
        ("garment-digit:01", {}, "expected garment-digit:GARMENTS,DIGITS"),
        ("garment-digit:0-1,2-2", {}, "'2-2' is no attribute; .* 9 9$"),
        ("garment-digit:0-9,2-3", {}, "both values of both attributes need two examples at least"),
        ("garment-digit", {"train_limit": 1001}, "train-limit is 1001, but there are .* balanced examples; 0 takes"),
        ("photo-face:01-34", {}, "'01-34' is no attribute; .*, from: 1 cat, 2 coffee,"),  # the astronaut has a face
        ("celeba:Male,Male", {}, "expected an attribute, two or more different ones"),
        ("celeba:Male,Smiling,Happy", {}, "no attribute 'Happy'; .* has: Male, Smiling, Young"),
        ("celeba:Male,Smiling", {}, r"training part: every combination .* must occur; .*\(0, 1\): 0, "),
    ):
        where = str(tmp_path) if "photo" not in name else ""
        with subtests.test(message), pytest.raises(DataError, match=message):
            load_dataset(name, data_dir=where, **changes)
    data = load_dataset("celeba", data_dir=str(tmp_path), image_size=16)
    assert data.train.labels.tolist() == [1, 0, 0, 1], "one attribute is neither balanced nor sensitive"
    assert data.train.sensitive is None


def test_attributes_of_celeba_are_those_of_torchvision(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from torchvision import datasets

    monkeypatch.setattr(datasets.CelebA, "_check_integrity", lambda _: True)
    generator = np.random.default_rng(1)
    every = ("Male", "Wearing_Hat", "Smiling", "Young", "Bald")
    values = {name: generator.choice([-1, 1], 30).tolist() for name in every}
    write_celeba(tmp_path / "celeba", [[0, 1, 2][number % 3] for number in range(30)], values)
    for option in ("all", "Young,Male,Smiling", "Smiling,Wearing_Hat,Male,Young"):
        data = load_dataset(f"celeba:{option}", data_dir=str(tmp_path))
        names = every if option == "all" else tuple(option.split(","))
        assert (data.class_names, data.num_classes, data.multi_label) == (names, len(names), True)
        for split, part in (("train", data.train), ("test", data.test)):
            theirs = datasets.CelebA(str(tmp_path), split=split, target_type="attr")
            columns = [theirs.attr_names.index(name) for name in names]
            assert torch.equal(part.vectors, theirs.attr[:, columns])
            assert torch.equal(part.images[:], torch.stack([pil_to_tensor(image) for image, _ in theirs]))
            assert torch.equal(part.labels, part.vectors[:, 0])
            assert part.sensitive is None
            rows = torch.tensor([3, 0])
            assert torch.equal(part.truth(rows), theirs.attr[rows][:, columns])
            assert torch.equal(with_channels(part, 1).vectors, part.vectors)


def test_the_servers_own_examples_bring_their_attribute(garments: Path) -> None:
    plan = Experiment.of(dataset="garment-digit", data_dir=str(garments), auxiliary_fraction=0.5).plan()
    own = Auxiliary(plan)
    data = plan.load_data()
    rows = own.indices(data.train.strata())
    # As many of each pair of a class and a value as half of the images are.
    pairs = 2 * data.train.labels + data.train.sensitive
    assert pairs[rows].bincount(minlength=4).tolist() == [count // 2 for count in pairs.bincount(minlength=4).tolist()]
    assert torch.equal(own.sensitive(), data.train.sensitive[rows])
    assert torch.equal(own.examples().targets.argmax(1), data.train.labels[rows])
    assert Auxiliary(replace(plan, dataset="fashion-mnist")).sensitive() is None
