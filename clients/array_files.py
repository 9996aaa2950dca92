"""Readers for data sets that come as a few files of arrays: IDX (MNIST, Fashion-MNIST) and the pickles of CIFAR."""

from __future__ import annotations

import gzip
import math
import pickle
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clients.image_data import DataError

_GZIP = b"\x1f\x8b"


def read_idx(path: Path, ndim: int) -> NDArray[np.uint8]:
    """Reads an IDX file of unsigned bytes, gzipped or not (told from its content, as names are not to be trusted).

    Layout, big-endian: two zero bytes, the type (8 for unsigned bytes), the number of dimensions, each dimension as 32
    bits, the values in row-major order.

    Args:
        path: The file.
        ndim: Dimensions expected: 3 for images, 1 for labels.

    Raises:
        DataError: When the file is no such file, is truncated or has bytes left over.

    Source: LeCun, Cortes and Burges, The MNIST database, "File formats".
    """
    raw = path.read_bytes()
    if raw.startswith(_GZIP):
        try:
            raw = gzip.decompress(raw)
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


_ALLOWED = {
    ("numpy.core.multiarray", "_reconstruct"),
    ("numpy._core.multiarray", "_reconstruct"),
    ("numpy", "ndarray"),
    ("numpy", "dtype"),
    ("_codecs", "encode"),
}


class _ArrayUnpickler(pickle.Unpickler):
    """Rebuilds numpy arrays, numbers, texts, lists and dictionaries, and nothing that could run code."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _ALLOWED:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which no array needs")
        # The files of 2009 name a module that numpy 2 moved; numpy 1.26 knows both names.
        return super().find_class(module.replace("numpy.core", "numpy._core"), name)


def read_pickle(path: Path) -> dict[str, Any]:
    """Reads a pickled dictionary of arrays, numbers and texts, as Python 2 wrote it; refuses everything else.

    torchvision's reader would run whatever a file says, and calls a damaged file "not found".

    Raises:
        DataError: When the file is damaged or asks for more.
    """
    try:
        with path.open("rb") as file:
            content = _ArrayUnpickler(file, encoding="latin1").load()
    except (pickle.UnpicklingError, EOFError, ValueError, KeyError, IndexError, TypeError, AttributeError) as error:
        raise DataError(f"{path} cannot be read as a pickle of arrays: {error}") from None
    if not isinstance(content, dict):
        raise DataError(f"{path} holds a {type(content).__name__}, expected a dictionary")
    return content


def read_cifar(batches: Sequence[Path], label_key: str) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Reads batches of CIFAR: images (N, 3, 32, 32) and labels (N,).

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
