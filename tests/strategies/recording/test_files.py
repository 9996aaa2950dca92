"""Arrays as they crossed the wire, in safetensors files."""

import io
import itertools
from pathlib import Path

import numpy as np
import pytest
from flwr.app import Array
from safetensors import safe_open
from safetensors.numpy import load_file
from safetensors.torch import load_file as load_tensors

from clients.wire.records import view_of
from clients.wire.texts import RecordError
from strategies.recording.files import RecordingWriter

KINDS = ("f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "b1")
"""NumPy's, of all that may be sent."""


def kept(folder: Path, arrays: dict[str, np.ndarray]) -> Path:
    """The file of arrays that came in a message."""
    writer = RecordingWriter(folder / "rec", 10**6, {})
    assert writer.keep_arrays("x.safetensors", {n: view_of(n, Array(one)) for n, one in arrays.items()}) == ""
    return folder / "rec" / "x.safetensors"


def test_what_is_no_plain_array_is_refused() -> None:
    good, objects = Array(np.zeros(2)), io.BytesIO()
    np.save(objects, np.array([{}], dtype=object), allow_pickle=True)
    for odd, why in (
        (Array(np.zeros(2, np.complex64)), "complex64"),
        (Array(good.dtype, good.shape, good.stype, good.data[:-8]), "8 bytes for shape"),
        (Array(good.dtype, good.shape, "pickle", good.data), "serialised as 'pickle'"),
        (Array(good.dtype, good.shape, good.stype, b"no array at all"), "magic string"),
        (Array(good.dtype, good.shape, good.stype, objects.getvalue()), "type object"),
    ):
        with pytest.raises(RecordError, match=why):
            view_of("x", odd)


def test_the_library_reads_what_is_written(tmp_path: Path) -> None:
    """Beside an array of one odd byte, in front of which a careless writer would misplace it."""
    values = np.arange(6).reshape(2, 3) % 2
    for at, (kind, order, end) in enumerate(itertools.product(KINDS, "CF", "<>")):
        dtype = np.dtype(end + kind)
        wanted = {
            "odd": np.array([7], np.uint8), "b": np.asarray(values.astype(dtype), order=order),  # type: ignore[call-overload]
            "a": np.array(1).astype(dtype), "none": np.zeros((0, 4), np.float32),
        }  # fmt: skip
        path = kept(tmp_path / str(at), wanted)
        for name, array in load_file(path).items():
            np.testing.assert_array_equal(array, wanted[name])
            assert (array.shape, array.dtype) == (wanted[name].shape, wanted[name].dtype.newbyteorder("="))
        with safe_open(path, framework="pt") as file:
            assert file.metadata() == {"order": '["odd", "b", "a", "none"]'}
        assert set(load_tensors(path)) == set(wanted)
