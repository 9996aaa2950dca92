"""Safetensors files written straight from Flower's arrays: what crossed the wire goes to the disk without a copy in memory.

The format (Hugging Face, safetensors 0.4): the length of a header in eight bytes, little-endian, the header as JSON (name ->
dtype, shape and the place of its bytes), and the values one behind the other. ``safetensors`` itself reads the files.
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from flwr.app import Array

TYPES = {
    "f2": "F16", "f4": "F32", "f8": "F64", "i1": "I8", "i2": "I16", "i4": "I32", "i8": "I64", "u1": "U8", "u2": "U16",
    "u4": "U32", "u8": "U64", "b1": "BOOL",
}  # fmt: skip
"""Kind and bytes of NumPy -> the format's name."""
HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
ALIGNED = 8
"""Bytes; the header ends at a multiple, and larger types come first, so that every value lies where its type wants it."""


@dataclass(frozen=True)
class Values:
    """The values of one array, in C order and little-endian.

    Attributes:
        dtype: Of NumPy.
        shape: Axes.
        data: Their bytes.
    """

    dtype: np.dtype[np.generic]
    shape: tuple[int, ...]
    data: memoryview


def values_of_array(array: Array) -> Values:
    """What an array of Flower holds, without copying it where it is in C order.

    Raises:
        TypeError: When it is of no NumPy type, or of one that safetensors does not have, such as complex numbers.
        ValueError: When its bytes are no NumPy array, or one of objects, which are never unpickled.
    """
    if array.stype != "numpy.ndarray":
        raise TypeError(f"an array is serialised as {array.stype!r}; allowed: 'numpy.ndarray'")
    file = io.BytesIO(array.data)  # shares the bytes as long as nobody writes
    read = HEADERS.get(np.lib.format.read_magic(file))
    shape, fortran, dtype = read(file) if read else ((), True, np.dtype(object))
    if fortran or dtype.hasobject or dtype.byteorder == ">":
        plain = np.asarray(array.numpy(), order="C")
        plain = plain.astype(plain.dtype.newbyteorder("<"), copy=False)
        shape, dtype, data = plain.shape, plain.dtype, memoryview(plain.tobytes())
    else:
        data = memoryview(array.data)[file.tell() :]
    if dtype.str[1:] not in TYPES:
        raise TypeError(f"an array is of type {dtype}; allowed: {', '.join(TYPES)}")
    if data.nbytes != int(np.prod(shape, dtype=np.int64)) * dtype.itemsize:
        raise ValueError(f"an array of shape {shape} and type {dtype} holds {data.nbytes} bytes")
    return Values(dtype, tuple(shape), data)


def write_tensors(path: Path, values: Mapping[str, Values], metadata: Mapping[str, str]) -> None:
    """Writes a safetensors file.

    Args:
        path: Where to.
        values: By name.
        metadata: Texts for the header.
    """
    header: dict[str, object] = {"__metadata__": dict(metadata)}
    at = 0
    ordered = sorted(values.items(), key=lambda item: -item[1].dtype.itemsize)
    for name, one in ordered:
        end = at + one.data.nbytes
        header[name] = {"dtype": TYPES[one.dtype.str[1:]], "shape": list(one.shape), "data_offsets": [at, end]}
        at = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % ALIGNED)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little"))
        file.write(text)
        for _, one in ordered:
            file.write(one.data)
