"""Flower's records <-> tensors and plain numbers, in one place for both sides of the wire."""

import functools
import hashlib
import io
import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord

from clients.wire.texts import Received, RecordError, one_line, shortened
from defenses.tensors import NamedTensors, Tensors

REFUSALS = REFUSED, MODEL_REFUSED = 1403, 1404
"""Error codes of a reply to a question that the node does not answer by its own configuration, or not on the sent model; Flower's
own codes are small."""
WITHHELD = "withheld"
"""Record of what was left out of an answer, by the node's configuration: key -> reason."""
HEADERS = {(1, 0): (np.lib.format.read_array_header_1_0, 2), (2, 0): (np.lib.format.read_array_header_2_0, 4)}
"""Version of NumPy's format -> what reads its header, literals only, and the bytes of its length. Later versions are for tables
with named columns."""
NUMPY = Array(np.zeros(0)).stype
"""What Flower calls the serialisation of NumPy's arrays."""
LONGEST_HEADER = 1024
"""Bytes: twice what 32 axes need. What NumPy cannot parse it tries to repair, in a time that grows with its square."""
KINDS, WIDEST = "biuf", 8
"""NumPy's kinds of what may be sent (truth values, whole and real numbers), and most bytes of a value."""
MOST_AXES, LONGEST_SIDE = 32, 2**31
"""Of an array. A side may be long where another is zero, and nothing that follows should take its word for it."""


def to_record(tensors: NamedTensors) -> ArrayRecord:
    """Tensors, on any device, as an ArrayRecord."""
    # Made contiguous by torch: NumPy would give a tensor without axes one.
    return ArrayRecord({name: Array(tensor.cpu().contiguous().numpy()) for name, tensor in tensors.items()})


def to_tensors(record: ArrayRecord) -> Tensors:
    """An ArrayRecord as CPU tensors of their own memory; ``RecordError`` names an array that is none."""
    return {name: torch.from_numpy(np.array(view_of(name, array))) for name, array in record.items()}


def view_of(name: str, array: Array) -> np.ndarray:
    """View of an array's received values without a copy: no memory is taken, whatever size the array states.

    Flower's own ``Array.numpy`` first takes the memory that the header declares, which may be any number of bytes.

    Args:
        name: For the error.
        array: Array of Flower; its reported type and shape outside of its bytes are not read.

    Raises:
        RecordError: When its bytes are no array of whole or real numbers or truth values, or not as many as its shape says.
            Objects are never unpickled.
    """
    if array.stype != NUMPY:
        raise RecordError(f"array {shortened(name)} is serialised as {shortened(array.stype)}; allowed: {NUMPY!r}")
    try:
        return _values(array.data)
    except Exception as error:  # NumPy may raise anything on a header that another machine chose
        reason = f"{type(error).__name__}: {shortened(error)}"
        raise RecordError(f"array {shortened(name)} holds no numbers that can be read: {reason}") from None


def _values(data: bytes) -> np.ndarray:
    file = io.BytesIO(data)  # shares the bytes until one of them is written
    version = np.lib.format.read_magic(file)
    if version not in HEADERS:
        raise ValueError(f"version {version} of the format; allowed: {', '.join(map(str, HEADERS))}")
    size = file.read(HEADERS[version][1])
    if (length := int.from_bytes(size, "little")) > LONGEST_HEADER:
        raise ValueError(f"a header of {length} bytes; allowed: at most {LONGEST_HEADER}")
    shape, fortran, dtype = _header(version, size + file.read(length))
    body = memoryview(data)[file.tell() :]
    if math.prod(shape) * dtype.itemsize != body.nbytes:
        raise ValueError(f"{body.nbytes} bytes for shape {shape} and type {dtype}")
    flat = np.frombuffer(body, dtype) if body.nbytes else np.empty(0, dtype)
    values = flat.reshape(shape, order="F" if fortran else "C")
    return values if dtype.isnative else values.astype(dtype.newbyteorder("="))


@functools.lru_cache(maxsize=1024)
def _header(version: tuple[int, int], text: bytes) -> tuple[tuple[int, ...], bool, np.dtype]:
    """Shape, order and type that a header declares; kept, as messages repeat those of a model, and NumPy parses them as Python."""
    shape, fortran, dtype = HEADERS[version][0](io.BytesIO(text))
    if dtype.kind not in KINDS or dtype.itemsize > WIDEST:
        raise ValueError(f"type {dtype}; allowed: truth values, whole and real numbers of at most {WIDEST} bytes")
    if len(shape) > MOST_AXES or any(type(side) is not int or not 0 <= side <= LONGEST_SIDE for side in shape):
        raise ValueError(f"shape {shape}")
    return shape, fortran, dtype


def digest_of(records: Iterable[ArrayRecord]) -> str:
    """64 hexadecimal digits of the names, types, shapes and values of all arrays."""
    digest = hashlib.blake2b(digest_size=32)
    for record in records:
        for name, array in record.items():
            digest.update(repr((name, array.dtype, tuple(array.shape), len(array.data))).encode())
            digest.update(array.data)
    return digest.hexdigest()


def metrics(values: Mapping[str, int | float | list[float]]) -> MetricRecord:
    """Numbers, or lists of numbers, as a MetricRecord."""
    return MetricRecord({**values})


def tensors_of(message: Message, name: str) -> Tensors:
    """The tensors of a message's record, empty when it has none of that name; ``RecordError`` names an array that is none."""
    record = message.content.get(name)
    return Received(to_tensors(record) if isinstance(record, ArrayRecord) else {})


def values_of(message: Message, name: str) -> Mapping[str, Any]:
    """The values of a message's config or metric record; empty when it has none of that name."""
    record: Any = message.content.get(name)
    return Received(record if isinstance(record, ConfigRecord | MetricRecord) else {})


def withheld(reasons: Mapping[str, str]) -> dict[str, ConfigRecord]:
    """The record of the content that a reply omits; none for a complete reply."""
    return {WITHHELD: ConfigRecord({**reasons})} if reasons else {}


def reason_of(message: Message) -> str:
    """Reason of an error reply: the last line of its traceback, without Flower's wrapping."""
    reason = message.error.reason or f"error code {message.error.code}"
    lines = [line.strip() for line in reason.split("\n") if line.strip()]
    last = lines[-1] if lines else "no reason given"
    return one_line(last.removeprefix(WRAPPING).removesuffix("'>"), MAX_REASON)


WRAPPING = "Exception ClientAppException occurred. Message: "
MAX_REASON = 400
"""Characters; a reason may carry a whole traceback, and with it data."""
