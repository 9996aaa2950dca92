"""Faults of one reply: what is too long, unreadable, of another shape, not finite or out of its range, each with a reason."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict

from attacks.metrics.registry import known_metric
from clients.wire.records import values_of, view_of
from clients.wire.texts import MOST_JSON, RecordError, shortened

MOST_NAMES = 4096
"""Of the records of a reply, and of the values of a record."""
LONGEST_KEY = 2**16
"""Characters of a name; a ledger is under the text of its pipeline."""
MOST_VALUES = 2**20
"""Of one list, such as a score of each example."""
MOST_IN_ALL = 2**26
"""Characters, bytes and values of all records together."""


def oversized(content: RecordDict) -> str:
    """Reason why a reply's content, without its arrays, exceeds that of an honest client, or ""."""
    if len(content) > MOST_NAMES:
        return f"{len(content)} records; at most {MOST_NAMES} are read"
    total = 0
    plain: dict[str, Mapping[str, Any]] = {**content.config_records, **content.metric_records}
    for name, record in plain.items():
        if len(record) > MOST_NAMES:
            return f"{shortened(name[:LONGEST_KEY])}: {len(record)} names; at most {MOST_NAMES} are read"
        if (longest := max(map(len, (name, *record)))) > LONGEST_KEY:
            return f"{shortened(name[:LONGEST_KEY])}: a name of {longest} characters; at most {LONGEST_KEY} are read"
        for key, value in record.items():
            size, why = _size(value)
            if why:
                return f"{shortened(name)}: {shortened(key)} has {why}"
            total += size + len(key)
    if total > MOST_IN_ALL:
        return f"{total} characters and values in all; at most {MOST_IN_ALL} are read"
    return ""


def _size(value: Any) -> tuple[int, str]:
    """Characters, bytes or values of a value, and why they are too many, or ""."""
    if isinstance(value, str | bytes):
        kind = "characters" if isinstance(value, str) else "bytes"
        return len(value), f"{len(value)} {kind}; at most {MOST_JSON} are read" if len(value) > MOST_JSON else ""
    if not isinstance(value, list):
        return 1, ""
    if len(value) > MOST_VALUES:
        return len(value), f"{len(value)} values; at most {MOST_VALUES} are read"
    sizes = [_size(entry) for entry in value]
    return sum(size for size, _ in sizes), next((why for _, why in sizes if why), "")


def unreadable(reply: Message) -> str:
    """Reason why a reply's records cannot be read as tensors of any kind, or ""; no array is copied."""
    for record, arrays in reply.content.array_records.items():
        try:
            for name, array in arrays.items():
                view_of(name, array)
        except RecordError as error:
            return f"{shortened(record)}: {error}"
    return ""


def fault(reply: Message, reference: Mapping[str, np.ndarray], record: str = "arrays", most: float = math.inf) -> str:
    """Reason why a reply's arrays of a record cannot be used, or "".

    Refused are missing records, names, shapes or dtypes other than those of ``reference`` (such as the global model), and NaN or
    infinite values. So are metrics that are not single numbers in their range, and counts of examples that are not whole numbers
    from 1 to ``most``: they are the weights of the average, and the client chooses them.
    """
    arrays = reply.content.get(record)
    if not isinstance(arrays, ArrayRecord):
        return f"the reply has no {record!r}"
    if set(arrays) != set(reference):
        odd = sorted(set(arrays) ^ set(reference))
        return f"{record}: names differ from the requested ones at {shortened(odd[:3])} ({len(odd)} in all)"
    for name, expected in reference.items():
        try:
            values = view_of(name, arrays[name])
        except RecordError as error:
            return f"{record}: {error}"
        if values.shape != expected.shape or values.dtype != expected.dtype:
            return f"{record}: {name!r} is {values.dtype}{values.shape}, expected {expected.dtype}{expected.shape}"
        if not np.isfinite(values).all():
            return f"{record}: {name!r} holds NaN or infinite values"
    metrics = reply.content.get("metrics")
    if not isinstance(metrics, MetricRecord):
        return "the reply has no 'metrics'"
    faults = (fault_in_number(name, value, name) for name, value in metrics.items())
    return fault_in_count(metrics, most) or next(filter(None, faults), "")


def like(*shape: int, dtype: type[np.generic] = np.float32) -> np.ndarray:
    """An array of this shape and dtype to compare others with; takes no memory."""
    return np.broadcast_to(dtype(0), shape)


def numbered(
    shapes: Sequence[tuple[int, ...]], first: int = 0, dtype: type[np.generic] = np.float32
) -> dict[str, np.ndarray]:
    """Arrays from ``like``, one of each shape, named by numbers from ``first``."""
    return {str(at): like(*shape, dtype=dtype) for at, shape in enumerate(shapes, first)}


def seconds_of(reply: Message, name: str) -> float:
    """The seconds that a client reports under ``name``; 0 for anything else, as nothing but a row depends on them."""
    seconds = values_of(reply, "metrics").get(name)
    return float(seconds) if isinstance(seconds, int | float) else 0.0


def fault_in_count(numbers: Mapping[str, Any], most: float = math.inf) -> str:
    """Reason why reported numbers hold no ``num-examples`` from 1 to ``most``, the weight of a client in a mean, or ""."""
    count = numbers.get("num-examples")
    if isinstance(count, int) and 1 <= count <= most:
        return ""
    have = f" of at most {most}, as many as the client has" if most < math.inf else ""
    return f"metrics: num-examples is {shortened(count)}, expected a positive whole number{have}"


def fault_in_number(name: str, value: Any, metric: str) -> str:
    """Reason why what a client reports under a name is no number, or outside the range of its metric, or ""."""
    if isinstance(value, list):
        return f"metrics: {shortened(name)} is a list, expected a number"
    known = known_metric(metric)
    wrong = known is not None and not known.allows(value)
    return f"metrics: {shortened(name)} is {shortened(value)}, expected {known.allowed}" if known and wrong else ""
