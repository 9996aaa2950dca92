"""Readers for data sets that come as a few files of arrays: IDX (MNIST, Fashion-MNIST) and the pickles of CIFAR."""

import gzip
import io
import math
import pickle
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clients.data.images import DataError, Levels

_GZIP = b"\x1f\x8b"
_MOST_UNPACKED = 2**32
"""Values of a packed IDX file; EMNIST, the largest data set in it, has 0.6 billion."""


def read_idx(path: Path, ndim: int) -> Levels:
    """Read an IDX file of unsigned bytes with ``ndim`` dimensions (3: images, 1: labels); its content shows gzip compression.

    Layout, big-endian: two zero bytes, the type (8 for unsigned bytes), the number of dimensions, each dimension as 32 bits,
    the values in row-major order.

    Raises:
        DataError: When the file is no such file, is truncated or has bytes left over.

    Source: LeCun, Cortes and Burges, The MNIST database, "File formats".
    """
    raw = path.read_bytes()
    if raw.startswith(_GZIP):
        try:
            raw = _unpacked(raw, ndim)
        except (OSError, EOFError, zlib.error) as error:
            raise DataError(f"{path} is damaged: {error}") from None
    if raw[:3] != b"\x00\x00\x08" or len(raw) < 4 + 4 * ndim:
        raise DataError(f"{path} is not an IDX file of unsigned bytes: it starts with {raw[:4].hex(' ') or 'nothing'}")
    if raw[3] != ndim:
        raise DataError(f"{path} has {raw[3]} dimensions, expected {ndim}")
    shape = [int.from_bytes(raw[4 + 4 * i : 8 + 4 * i], "big") for i in range(ndim)]
    values = np.frombuffer(raw, np.uint8, offset=4 + 4 * ndim)
    if len(values) != math.prod(shape):
        raise DataError(f"{path} holds {len(values)} values, but its header says {'x'.join(map(str, shape))}")
    # A copy, because torch wants memory that may be written to.
    return values.reshape(shape).copy()


def _unpacked(raw: bytes, ndim: int) -> bytes:
    """At most one byte more than the header announces: a few packed kilobytes could otherwise fill the memory."""
    with gzip.GzipFile(fileobj=io.BytesIO(raw)) as file:
        header = file.read(4 + 4 * ndim)
        sizes = [int.from_bytes(header[at : at + 4], "big") for at in range(4, len(header), 4)]
        announced = math.prod(sizes) if len(header) == 4 + 4 * ndim and header[3] == ndim else 0
        if announced > _MOST_UNPACKED:
            raise OSError(f"its header announces {announced} values; allowed: {_MOST_UNPACKED}")
        return header + file.read(announced + 1)


class _PickledType:
    """Stands in for ``numpy.ndarray`` and ``numpy.dtype``, whose rebuild from a damaged file can crash the process."""

    def __init__(self, *arguments: Any) -> None:
        self.arguments = arguments
        self.state: Any = None

    def __setstate__(self, state: Any) -> None:
        self.state = state


_STAND_INS: dict[tuple[str, str], Any] = {
    ("numpy.core.multiarray", "_reconstruct"): _PickledType,
    ("numpy._core.multiarray", "_reconstruct"): _PickledType,
    ("numpy", "ndarray"): _PickledType,
    ("numpy", "dtype"): _PickledType,
    ("_codecs", "encode"): lambda text, _encoding="latin1": text.encode("latin1"),
}


class _ArrayUnpickler(pickle._Unpickler):
    """Reads numbers, texts, lists, dictionaries and descriptions of arrays, and nothing that could run code.

    The base is pickle's Python implementation: the one in C reserves whatever amount of memory a damaged file names.
    """

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _STAND_INS:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which no array of bytes needs")
        return _STAND_INS[module, name]


def _array(pickled: _PickledType) -> Levels:
    # numpy's pickle state: version, shape, dtype, Fortran order, values.
    _, shape, dtype, fortran, values = pickled.state
    if dtype.arguments[0] not in ("u1", "|u1") or fortran:
        raise ValueError(
            f"an array of type {dtype.arguments[0]!r} (Fortran order: {fortran}), expected unsigned bytes in C order"
        )
    raw = values.encode("latin1") if isinstance(values, str) else bytes(values)
    return np.frombuffer(raw, np.uint8).reshape(shape).copy()


def read_pickle(path: Path) -> dict[str, Any]:
    """Read a pickled dictionary of arrays of bytes, numbers and texts, as Python 2 wrote it; ``DataError`` for everything else.

    torchvision's reader would run code in a file, and reports a damaged file as "not found".
    """
    raw = io.BytesIO(path.read_bytes())
    try:
        content = _ArrayUnpickler(raw, encoding="latin1").load()
        if not isinstance(content, dict):
            raise ValueError(f"it holds a {type(content).__name__}, expected a dictionary")
        return {key: _array(value) if isinstance(value, _PickledType) else value for key, value in content.items()}
    except Exception as error:  # unpickling of damaged files raises anything
        raise DataError(f"{path} cannot be read as a pickle of arrays: {error}") from None


def read_cifar(batches: Sequence[Path], label_key: str) -> tuple[Levels, NDArray[np.int64]]:
    """Read batches of CIFAR: images (N, 3, 32, 32) and labels (N,).

    A batch holds under "data" one row of 3072 bytes per image, channel by channel, and its labels under ``label_key``.

    Raises:
        DataError: When a batch lacks a key or its rows have another length.

    Source: Krizhevsky 2009, Learning Multiple Layers of Features from Tiny Images, and the data set's page.
    """
    images, labels = [], []
    for batch in batches:
        content = read_pickle(batch)
        if missing := {"data", label_key} - content.keys():
            raise DataError(f"{batch} lacks {sorted(missing)}; it holds {sorted(map(str, content))}")
        data, classes = content["data"], np.asarray(content[label_key])
        if not isinstance(data, np.ndarray) or data.dtype != np.uint8 or data.ndim != 2 or data.shape[1] != 3072:
            raise DataError(f"{batch}: data is {getattr(data, 'shape', type(data))}, expected uint8 (N, 3072)")
        if classes.shape != data.shape[:1] or classes.dtype.kind not in "iu":
            raise DataError(f"{batch}: {len(data)} images but labels of shape {classes.shape} ({classes.dtype})")
        images.append(data.reshape(-1, 3, 32, 32))
        labels.append(classes.astype(np.int64))
    return np.concatenate(images), np.concatenate(labels)
