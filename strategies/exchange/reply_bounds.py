"""Bounds on what a reply holds beside its arrays: names, texts and lists, which a client chooses and the server would keep."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flwr.app import RecordDict

from clients.wire.texts import MOST_JSON, shortened

MOST_NAMES = 4096
"""Of the records of a reply, and of the values of a record."""
LONGEST_KEY = 2**16
"""Characters of a name; a ledger is under the text of its pipeline."""
MOST_VALUES = 2**20
"""Of one list, such as a score of each example."""
MOST_IN_ALL = 2**26
"""Characters, bytes and values of all records together."""


def oversized(content: RecordDict) -> str:
    """Why the content of a reply, without its arrays, holds more than an honest client sends, or ""."""
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
    sizes = [_size(one) for one in value]
    return sum(size for size, _ in sizes), next((why for _, why in sizes if why), "")
