"""Tensors on the wire come back as they were."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from clients.wire.records import to_record, to_tensors


@pytest.mark.parametrize(
    "tensor",
    [torch.tensor(True), torch.tensor(3), torch.zeros(0, 2), torch.arange(6.0).view(2, 3).T, torch.zeros(1)],
    ids=["bool without axes", "int without axes", "empty", "transposed", "one number"],
)
def test_shape_type_and_values_are_kept(tensor: Tensor) -> None:
    (found,) = to_tensors(to_record({"name": tensor})).values()
    assert (found.shape, found.dtype) == (tensor.shape, tensor.dtype)
    assert torch.equal(found, tensor)
