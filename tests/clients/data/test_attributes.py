"""Two attributes of each example: balance, disjoint parts, and frames that show what their labels say."""

from __future__ import annotations

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

from clients.data.attributes import balanced, binary_attribute, paired
from clients.data.datasets import DataError, ImageDataset, has_sensitive_attribute, is_multi_label, load_dataset
from clients.data.images import ImageData, with_channels
from clients.data.packaged import mnist_5k, packaged_file, photos
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


# --- rows


@given(LABELS, st.data())
@settings(deadline=None, max_examples=80)
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
@settings(deadline=None, max_examples=80)
def test_pairs_use_nothing_twice_and_are_balanced_from_the_beginning(
    first: list[int], second: list[int], seed: int
) -> None:
    sources = [np.array([*values, -1, 0, 0, 1, 1]) for values in (first, second)]
    rows = paired("these", *sources, np.random.default_rng(seed))
    for chosen in rows:
        assert len(set(chosen.tolist())) == len(chosen)
    # As many as possible: each combination takes half of the rarest value of any attribute.
    assert len(rows[0]) == len(rows[1]) == 4 * (min((values == v).sum() for values in sources for v in (0, 1)) // 2)
    pairs = [source[chosen] for source, chosen in zip(sources, rows, strict=True)]
    assert (2 * pairs[0] + pairs[1]).tolist() == [0, 1, 2, 3] * (len(rows[0]) // 4)


def test_a_value_without_two_examples_makes_no_pairs() -> None:
    with pytest.raises(DataError, match=r"these: both values .* two examples at least; there are \[2, 1, 2, 2\]"):
        paired("these", np.array([0, 0, 1]), np.array([0, 0, 1, 1]), np.random.default_rng(0))


def test_an_attribute_is_two_groups_of_classes() -> None:
    values, names = binary_attribute("set", "20-3", ["cat", "dog", "cow", "emu"])
    assert values.tolist() == [0, -1, 0, 1]
    assert names == ("cat or cow", "emu")


@pytest.mark.parametrize("text", ["", "01", "0-", "0-1-2", "0-0", "00-1", "0-4", "0-x", "0-3", "0 - 1"])
def test_what_is_no_attribute_is_answered_with_the_classes(text: str) -> None:
    with pytest.raises(DataError, match=r"is no attribute; .* 01-2, from: 0 cat, 1 dog, 2 cow$"):
        binary_attribute("set", text, ["cat", "dog", "cow", ""])


# --- composed frames


def blocks(images: Tensor) -> list[dict[bytes, int]]:
    """Frames (N, 1, 56, 56) -> the quadrants that are not black, by their bytes."""
    cut = images.unfold(2, 28, 28).unfold(3, 28, 28).reshape(len(images), 4, 28, 28)
    return [{block.numpy().tobytes(): place for place, block in enumerate(frame) if block.any()} for frame in cut]


@pytest.fixture
def garments(tmp_path: Path) -> Path:
    """Bright noise of 240 + 80 garments; class 9 has no garment."""
    generator = np.random.default_rng(0)
    parts = [
        (generator.integers(1, 256, (count, 28, 28), dtype=np.uint8), (np.arange(count) % 9).astype(np.uint8))
        for count in (240, 80)
    ]
    write_mnist(tmp_path, *parts)
    return tmp_path


def test_a_garment_and_a_digit_are_in_two_quadrants_as_labelled(garments: Path) -> None:
    data = load_dataset("garment-digit:0-12,3-8", data_dir=str(garments))
    assert (data.class_names, data.sensitive_names) == (("T-shirt/top", "Trouser or Pullover"), ("3", "8"))
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


def test_frames_are_the_same_for_everybody_and_can_be_scaled(garments: Path) -> None:
    first = load_dataset("garment-digit", data_dir=str(garments))
    load_dataset.cache_clear()
    second = load_dataset("garment-digit", data_dir=str(garments))
    assert torch.equal(first.train.images[:], second.train.images[:])
    assert first.input_shape == (1, 56, 56)
    assert load_dataset("garment-digit", data_dir=str(garments), image_size=64).input_shape == (1, 64, 64)
    frames = first.train.images[:].double() / 255
    assert first.mean == pytest.approx((frames.mean().item(),), rel=1e-5)
    assert first.std == pytest.approx((frames.std().item(),), rel=1e-5)


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("garment-digit:01", {}, "expected garment-digit:GARMENTS,DIGITS"),
        ("garment-digit:0-1,2-2", {}, "'2-2' is no attribute; .* 9 9$"),
        ("garment-digit:0-9,2-3", {}, "both values of both attributes need two examples at least"),
        ("garment-digit", {"train_limit": 1001}, "train-limit is 1001, but there are .* balanced examples; 0 takes"),
        ("garment-digit", {"test_limit": 999}, "test-limit is 999, but there are"),
    ],
)
def test_frames_that_cannot_be_had_are_refused(
    name: str, changes: dict[str, int], message: str, garments: Path
) -> None:
    with pytest.raises(DataError, match=message):
        load_dataset(name, data_dir=str(garments), **changes)


def test_a_limit_keeps_the_balance(garments: Path) -> None:
    data = load_dataset("garment-digit", data_dir=str(garments), train_limit=40, test_limit=6)
    assert joint(data.train) == [10] * 4
    assert sorted(joint(data.test)) == [1, 1, 2, 2]


@pytest.fixture(scope="module")
def faces() -> ImageDataset:
    return load_dataset("photo-face")


@pytest.mark.long
def test_a_picture_of_the_package_is_on_a_doubled_tile(faces: ImageDataset) -> None:
    pictures = np.load(packaged_file("skimage", "data/lfw_subset.npy"))
    numbers = {(picture * 255).round().astype(np.uint8).tobytes(): row for row, picture in enumerate(pictures)}
    tiles = photos()
    used: list[int] = []
    for part, source in ((faces.train, tiles.train), (faces.test, tiles.test)):
        background = source.read(np.arange(len(source.labels)), 0).repeat_interleave(2, 2).repeat_interleave(2, 3)
        for frame, primary, sensitive in zip(part.images[:], part.labels, part.sensitive, strict=True):
            windows = np.lib.stride_tricks.sliding_window_view(frame[0].numpy(), (25, 25)).reshape(1600, 625)
            ((place, number),) = [(p, numbers[w.tobytes()]) for p, w in enumerate(windows) if w.tobytes() in numbers]
            assert (number < 100) == sensitive
            used.append(number)
            top, left = divmod(place, 40)
            rest = [row for row in range(64) if not top <= row < top + 25]
            (tile,) = (background[:, :, rest] == frame[:, rest]).flatten(1).all(1).nonzero().flatten().tolist()
            assert (source.labels[tile] in (3, 4, 6)) == primary
            assert (background[tile, :, :, :left] == frame[:, :, :left]).all()
            assert (background[tile, :, :, left + 25 :] == frame[:, :, left + 25 :]).all()
    assert sorted(used) == list(range(200))
    assert (joint(faces.train), joint(faces.test)) == ([40] * 4, [10] * 4)


def test_the_astronaut_has_a_face_of_her_own() -> None:
    with pytest.raises(DataError, match=r"'01-34' is no attribute; .*, from: 1 cat, 2 coffee,"):
        load_dataset("photo-face:01-34")


# --- CelebA


def test_two_attributes_of_celeba_are_balanced_and_in_the_order_of_the_list(tmp_path: Path) -> None:
    generator = np.random.default_rng(1)
    values = {name: generator.choice([-1, 1], 60).tolist() for name in ("Male", "Wearing_Hat", "Smiling")}
    sides = [[0, 1, 2][number % 3] for number in range(60)]
    write_celeba(tmp_path / "celeba", sides, values)
    data = load_dataset("celeba:Smiling,Wearing_Hat", data_dir=str(tmp_path), image_size=16)
    assert data.class_names == ("not Smiling", "Smiling")
    assert data.sensitive_names == ("not Wearing_Hat", "Wearing_Hat")
    for part, side in ((data.train, 0), (data.test, 2)):
        counts = joint(part)
        assert len(set(counts)) == 1
        assert counts[0] > 1
        pairs = [
            ((values["Smiling"][row] + 1) // 2, (values["Wearing_Hat"][row] + 1) // 2)
            for row in range(60)
            if sides[row] == side
        ]
        taken: dict[tuple[int, int], int] = {}
        expected = []
        for pair in pairs:
            taken[pair] = taken.get(pair, 0) + 1
            expected += [pair] if taken[pair] <= counts[0] else []
        assert list(zip(part.labels.tolist(), part.sensitive.tolist(), strict=True)) == expected


def test_one_attribute_of_celeba_is_neither_balanced_nor_sensitive(tmp_path: Path) -> None:
    write_celeba(tmp_path, [0, 0, 0, 2], {"Smiling": [1, 1, -1, 1]})
    data = load_dataset("celeba", data_dir=str(tmp_path), image_size=16)
    assert data.train.labels.tolist() == [1, 1, 0]
    assert data.train.sensitive is None
    assert data.sensitive_names == ()


def test_lists_with_commas_are_told_so(tmp_path: Path) -> None:
    write_celeba(tmp_path, [0, 2], {"Smiling": [1, -1]})
    file = tmp_path / "list_attr_celeba.txt"
    file.write_text("\n".join(",".join(line.split()) for line in file.read_text().splitlines()[1:]))
    with pytest.raises(DataError, match=r"has commas between its columns.*and blanks between columns"):
        load_dataset("celeba", data_dir=str(tmp_path), image_size=16)


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("Male,Male", "celeba:Male,Male: expected an attribute, two or more different ones"),
        ("Male,Smiling,Male", "expected an attribute, two or more different ones .* which has 3"),
        ("Male,Smiling,Happy", "no attribute 'Happy'; .* has: Male, Smiling, Young"),
        ("Male,Happy", "no attribute 'Happy'; .* has: Male, Smiling, Young"),
        ("Male,", "no attribute ''"),
        ("Male,Smiling", r"training part: every combination .* must occur; .*\(0, 1\): 0, "),
    ],
)
def test_attributes_of_celeba_that_cannot_be_had_are_refused(option: str, message: str, tmp_path: Path) -> None:
    attributes = {"Male": [1, 1, -1, 1, -1], "Smiling": [1, -1, -1, 1, 1], "Young": [1] * 5}
    write_celeba(tmp_path, [0, 0, 0, 0, 2], attributes)
    with pytest.raises(DataError, match=message):
        load_dataset(f"celeba:{option}", data_dir=str(tmp_path))


# --- CelebA, many attributes at once


@pytest.mark.parametrize("option", ["all", "Young,Male,Smiling", "Smiling,Wearing_Hat,Male,Young"])
def test_many_attributes_of_celeba_are_those_that_torchvision_reads(
    option: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from torchvision import datasets

    monkeypatch.setattr(datasets.CelebA, "_check_integrity", lambda _: True)
    generator = np.random.default_rng(1)
    values = {
        name: generator.choice([-1, 1], 30).tolist() for name in ("Male", "Wearing_Hat", "Smiling", "Young", "Bald")
    }
    write_celeba(tmp_path / "celeba", [[0, 1, 2][number % 3] for number in range(30)], values)
    data = load_dataset(f"celeba:{option}", data_dir=str(tmp_path), image_size=8)
    names = tuple(values) if option == "all" else tuple(option.split(","))
    assert (data.class_names, data.num_classes, data.multi_label) == (names, len(names), True)
    assert data.sensitive_names == ()
    for split, part in (("train", data.train), ("test", data.test)):
        theirs = datasets.CelebA(str(tmp_path), split=split, target_type="attr")
        columns = [theirs.attr_names.index(name) for name in names]
        assert torch.equal(part.vectors, theirs.attr[:, columns])
        assert torch.equal(part.labels, part.vectors[:, 0])
        assert part.sensitive is None
        rows = torch.tensor([3, 0])
        assert torch.equal(part.truth(rows), theirs.attr[rows][:, columns])
        assert torch.equal(with_channels(part, 1).vectors, part.vectors)


def test_a_limit_takes_the_vectors_of_its_images(tmp_path: Path) -> None:
    values = {name: [1, -1, -1, 1, 1, -1, 1, 1] for name in ("Male", "Smiling")} | {"Young": [-1, 1] * 4}
    write_celeba(tmp_path, [0] * 6 + [2] * 2, values)
    whole, some = (load_dataset("celeba:all", data_dir=str(tmp_path), image_size=8, train_limit=n) for n in (0, 3))
    for image, vector in zip(some.train.images, some.train.vectors, strict=True):
        (row,) = [at for at in range(6) if torch.equal(whole.train.images[at], image)]
        assert torch.equal(whole.train.vectors[row], vector)
    write_celeba(tmp_path / "two", [0, 2], {"Male": [1, 1], "Young": [1, -1]})
    with pytest.raises(DataError, match="those of the list, which has 2"):
        load_dataset("celeba:all", data_dir=str(tmp_path / "two"))


@pytest.mark.parametrize(
    ("name", "sensitive", "many"),
    [
        ("celeba", False, False), ("celeba:Male", False, False), ("celeba:Male,Young", True, False),
        ("celeba:Male,Young,Bald", False, True), ("celeba:all", False, True), ("garment-digit:0-1,2-3", True, False),
        ("mnist-5k", False, False), ("lfw:30", False, False),
    ],
)  # fmt: skip
def test_names_tell_how_many_labels_an_example_has(name: str, sensitive: bool, many: bool) -> None:
    assert (has_sensitive_attribute(name), is_multi_label(name)) == (sensitive, many)


def test_label_vectors_follow_their_images() -> None:
    images = torch.zeros(3, 1, 2, 2, dtype=torch.uint8)
    for wrong in (torch.zeros(2, 4, dtype=torch.int64), torch.zeros(3, dtype=torch.int64), torch.zeros(3, 4)):
        with pytest.raises(DataError, match="label vectors are"):
            ImageData(images, torch.arange(3), vectors=wrong)
    assert ImageData(images, torch.arange(3)).truth(torch.tensor([2])).tolist() == [2]


# --- in memory


def test_sensitive_labels_follow_their_images() -> None:
    images = torch.zeros(3, 1, 2, 2, dtype=torch.uint8)
    part = ImageData(images, torch.arange(3), torch.tensor([1, 0, 1]))
    assert with_channels(part, 3).sensitive.tolist() == [1, 0, 1]
    for wrong in (torch.zeros(2, dtype=torch.int64), torch.zeros(3)):
        with pytest.raises(DataError, match="sensitive labels are"):
            ImageData(images, torch.arange(3), wrong)


def test_data_sets_without_a_second_attribute_have_none() -> None:
    assert mnist_5k().train.sensitive is None
    data = load_dataset("mnist-5k")
    assert data.train.sensitive is None
    assert data.sensitive_names == ()


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
