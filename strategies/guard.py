"""What the server accepts: a reply that cannot be averaged safely is refused with a reason, never averaged."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from flwr.app import ArrayRecord, Message

from clients.records import reason_of, values_of


def fault(reply: Message, reference: Mapping[str, np.ndarray], record: str = "arrays") -> str:
    """Why a reply's arrays cannot be used, or "".

    Args:
        reply: A client's reply.
        reference: Name -> array of the shape and dtype that is expected, such as the global model.
        record: The reply's record to check.

    Refused are error replies, missing records, other names, shapes or dtypes, NaN or infinite values, and counts of
    examples that are not positive whole numbers (they are the weights of the average, and the client chooses them).
    """
    if reply.has_error():
        return reason_of(reply)
    arrays = reply.content.get(record)
    if not isinstance(arrays, ArrayRecord):
        return f"the reply has no {record!r}"
    if set(arrays) != set(reference):
        odd = sorted(set(arrays) ^ set(reference))
        return f"{record}: names differ from the model's at {odd[:3]} ({len(odd)} in all)"
    for name, expected in reference.items():
        values = arrays[name].numpy()
        if values.shape != expected.shape or values.dtype != expected.dtype:
            return f"{record}: {name!r} is {values.dtype}{values.shape}, expected {expected.dtype}{expected.shape}"
        if not np.isfinite(values).all():
            return f"{record}: {name!r} holds NaN or infinite values"
    count = values_of(reply, "metrics").get("num-examples")
    if not isinstance(count, int) or count <= 0:
        return f"metrics: num-examples is {count!r}, expected a positive whole number"
    return ""
