"""Small data sets in the exact on-disk formats of the real ones, packed byte by byte."""

import gzip
import struct
from pathlib import Path

import numpy as np
from numpy.typing import NDArray


def idx_bytes(values: NDArray[np.uint8]) -> bytes:
    """LeCun's format: magic number 0x0800 + dimensions, big-endian sizes, values."""
    return struct.pack(f">I{values.ndim}I", 0x0800 + values.ndim, *values.shape) + values.tobytes()


def write_mnist(
    folder: Path,
    train: tuple[NDArray[np.uint8], NDArray[np.uint8]],
    test: tuple[NDArray[np.uint8], NDArray[np.uint8]],
    *,
    zipped: bool = False,
    dot: str = "-",
) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for stem, (images, labels) in (("train", train), ("t10k", test)):
        for kind, values in (("images", images), ("labels", labels)):
            content = idx_bytes(values)
            name = f"{stem}-{kind}{dot}idx{values.ndim}-ubyte{'.gz' if zipped else ''}"
            (folder / name).write_bytes(gzip.compress(content) if zipped else content)


def python2_pickle(content: dict[str, object]) -> bytes:
    """What cPickle of Python 2 writes with protocol 2 for a dictionary of texts, integers, lists and byte arrays."""
    return b"\x80\x02" + _opcodes(content) + b"."


def _opcodes(value: object) -> bytes:
    if isinstance(value, dict):
        return b"}(" + b"".join(_opcodes(key) + _opcodes(item) for key, item in value.items()) + b"u"
    if isinstance(value, list):
        return b"](" + b"".join(map(_opcodes, value)) + b"e"
    if isinstance(value, str):
        return b"T" + struct.pack("<i", len(value)) + value.encode("latin1")
    if isinstance(value, int):
        return b"J" + struct.pack("<i", value)
    assert isinstance(value, np.ndarray)
    assert value.dtype == np.uint8
    shape = b"(" + b"".join(_opcodes(side) for side in value.shape) + b"t"
    dtype = b"cnumpy\ndtype\n(U\x02u1K\x00K\x01tR(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
    empty = b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(K\x00tU\x01btR"
    raw = value.tobytes()
    return empty + b"(K\x01" + shape + dtype + b"\x89T" + struct.pack("<i", len(raw)) + raw + b"tb"


def write_cifar10(folder: Path, images: NDArray[np.uint8], labels: list[int]) -> None:
    """Six batches of (N, 3, 32, 32) images, N divisible by six; the last one is the test batch."""
    folder.mkdir(parents=True)
    names = ["data_batch_1", "data_batch_2", "data_batch_3", "data_batch_4", "data_batch_5", "test_batch"]
    size = len(labels) // 6
    for batch, name in enumerate(names):
        rows = slice(batch * size, (batch + 1) * size)
        content = {"batch_label": name, "labels": labels[rows], "data": images[rows].reshape(size, 3072)}
        (folder / name).write_bytes(python2_pickle(content))
    titles = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]
    (folder / "batches.meta").write_bytes(python2_pickle({"num_vis": 3072, "label_names": titles}))


def write_cifar100(folder: Path, images: NDArray[np.uint8], labels: list[int], num_test: int) -> None:
    folder.mkdir(parents=True)
    for name, rows in (("train", slice(0, -num_test)), ("test", slice(-num_test, None))):
        coarse = [label // 5 for label in labels[rows]]
        content = {"coarse_labels": coarse, "fine_labels": labels[rows], "data": images[rows].reshape(-1, 3072)}
        (folder / name).write_bytes(python2_pickle(content))
    fine = [f"fine {i}" for i in range(100)]
    meta = {"fine_label_names": fine, "coarse_label_names": [f"coarse {i}" for i in range(20)]}
    (folder / "meta").write_bytes(python2_pickle(meta))


def write_celeba(folder: Path, sides: list[int], attributes: dict[str, list[int]]) -> None:
    """Pictures 178x218 with the five lists; ``attributes`` are -1 or 1 per picture, ``sides`` 0, 1 or 2."""
    from PIL import Image

    (folder / "img_align_celeba").mkdir(parents=True)
    names = [f"{i + 1:06d}.jpg" for i in range(len(sides))]
    generator = np.random.default_rng(0)
    for name in names:
        coarse = Image.fromarray(generator.integers(0, 256, (11, 9, 3), dtype=np.uint8))
        coarse.resize((178, 218), Image.Resampling.BICUBIC).save(folder / "img_align_celeba" / name)
    rows = [f"{name} " + " ".join(f"{attributes[a][i]:2d}" for a in attributes) for i, name in enumerate(names)]
    lists = {
        "list_attr_celeba.txt": [str(len(names)), " ".join(attributes) + " ", *rows],
        "list_eval_partition.txt": [f"{name} {side}" for name, side in zip(names, sides, strict=True)],
        "identity_CelebA.txt": [f"{name} {i + 1}" for i, name in enumerate(names)],
        "list_bbox_celeba.txt": [str(len(names)), "image_id x_1 y_1 width height", *(f"{n} 9 7 2 3" for n in names)],
        "list_landmarks_align_celeba.txt": [str(len(names)), "lefteye_x lefteye_y", *(f"{n} 69 109" for n in names)],
    }
    for file, lines in lists.items():
        (folder / file).write_text("\n".join(lines) + "\n")


def write_pgm(path: Path, pixels: NDArray[np.uint8]) -> None:
    """A binary grey map, as the AT&T faces come."""
    height, width = pixels.shape
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(f"P5\n{width} {height}\n255\n".encode() + pixels.tobytes())
