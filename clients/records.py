"""Flower's records <-> tensors and plain numbers, in one place for both sides of the wire."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord
from torch import Tensor

REFUSED = 1403
"""Error code of a reply to a question that the node does not answer by its own configuration; Flower's own codes are small."""
WITHHELD = "withheld"
"""Record of what was left out of an answer, by the node's configuration: key -> reason."""


def to_record(tensors: Mapping[str, Tensor]) -> ArrayRecord:
    """Tensors, on any device, as an ArrayRecord."""
    # Made contiguous by torch: NumPy would give a tensor without axes one.
    return ArrayRecord({name: Array(tensor.cpu().contiguous().numpy()) for name, tensor in tensors.items()})


def to_tensors(record: ArrayRecord) -> dict[str, Tensor]:
    """An ArrayRecord as CPU tensors of their own memory."""
    return {name: torch.from_numpy(np.array(array.numpy())) for name, array in record.items()}


def metrics(values: Mapping[str, int | float | list[float]]) -> MetricRecord:
    """Numbers, or lists of numbers, as a MetricRecord."""
    return MetricRecord({**values})


def tensors_of(message: Message, name: str) -> dict[str, Tensor]:
    """The tensors of a message's record; empty when it has none of that name."""
    record = message.content.get(name)
    return to_tensors(record) if isinstance(record, ArrayRecord) else {}


def values_of(message: Message, name: str) -> Mapping[str, Any]:
    """The values of a message's config or metric record; empty when it has none of that name."""
    record: Any = message.content.get(name)
    return record if record is not None else {}


def withheld(reasons: Mapping[str, str]) -> dict[str, ConfigRecord]:
    """The record that says what an answer leaves out; none when it leaves out nothing."""
    return {WITHHELD: ConfigRecord({**reasons})} if reasons else {}


def reason_of(message: Message) -> str:
    """Why an error reply failed: the last line of its traceback, which says what happened, without Flower's wrapping."""
    reason = message.error.reason or f"error code {message.error.code}"
    lines = [line.strip() for line in reason.strip().splitlines() if line.strip()]
    last = lines[-1] if lines else "no reason given"
    return last.removeprefix(WRAPPING).removesuffix("'>")[:MAX_REASON]


WRAPPING = "Exception ClientAppException occurred. Message: "
MAX_REASON = 400
"""Characters; a reason may carry a whole traceback, and with it data."""
