"""Tensors on the wire come back as they were."""

from __future__ import annotations

import torch

from clients.wire.records import to_record, to_tensors


def test_shape_type_and_values_are_kept() -> None:
    transposed = torch.arange(6.0).view(2, 3).T
    for tensor in (torch.tensor(True), torch.tensor(3), torch.zeros(0, 2), transposed, torch.zeros(1)):
        (found,) = to_tensors(to_record({"name": tensor})).values()
        assert (found.shape, found.dtype) == (tensor.shape, tensor.dtype)
        assert torch.equal(found, tensor)
