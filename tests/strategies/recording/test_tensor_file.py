"""Safetensors files that are written without the library, read by the library."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from flwr.app import Array
from safetensors import safe_open
from safetensors.numpy import load_file
from safetensors.torch import load_file as load_tensors

from strategies.recording.tensor_file import TYPES, values_of_array, write_tensors


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("end", ["<", ">"])
def test_the_library_reads_what_is_written(kind: str, order: str, end: str, tmp_path: Path) -> None:
    """Beside an array of one odd byte, in front of which a careless writer would misplace it."""
    values = np.arange(6).reshape(2, 3) % 2
    wanted = {
        "odd": np.array([7], np.uint8), "b": np.asarray(values.astype(np.dtype(end + kind)), order=order),  # type: ignore[call-overload]
        "a": np.array(1).astype(np.dtype(end + kind)), "none": np.zeros((0, 4), np.float32),
    }  # fmt: skip
    path = tmp_path / "x.safetensors"
    write_tensors(path, {name: values_of_array(Array(array)) for name, array in wanted.items()}, {"k": "v"})
    for name, array in load_file(path).items():
        np.testing.assert_array_equal(array, wanted[name])
        assert array.shape == wanted[name].shape
        assert array.dtype == wanted[name].dtype.newbyteorder("=")
    with safe_open(path, framework="pt") as file:
        assert file.metadata() == {"k": "v"}
    assert set(load_tensors(path)) == set(wanted)


def test_tensors_of_torch_arrive(tmp_path: Path) -> None:
    state = torch.nn.BatchNorm1d(3).state_dict()
    path = tmp_path / "x.safetensors"
    write_tensors(path, {name: values_of_array(Array(value)) for name, value in state.items()}, {})
    found = load_tensors(path)
    assert found.keys() == state.keys()
    assert all(torch.equal(found[name], value) and found[name].dtype == value.dtype for name, value in state.items())


def test_what_is_no_plain_array_is_refused() -> None:
    good = Array(np.zeros(2))
    with pytest.raises(TypeError, match="complex64"):
        values_of_array(Array(np.zeros(2, np.complex64)))
    with pytest.raises(ValueError, match="holds 8 bytes"):
        values_of_array(Array(good.dtype, good.shape, good.stype, good.data[:-8]))
    with pytest.raises(TypeError, match="serialised as 'pickle'"):
        values_of_array(Array(good.dtype, good.shape, "pickle", good.data))
    with pytest.raises(ValueError, match="magic string"):
        values_of_array(Array(good.dtype, good.shape, good.stype, b"no array at all"))
    with pytest.raises(ValueError, match="allow_pickle"):
        values_of_array(Array(np.array([{}], dtype=object)))
