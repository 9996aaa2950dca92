"""The server's checks of replies: an unusable reply is refused with a reason, never averaged or trained on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict

from attacks.metrics.training import CLIENT
from clients.task.task import Task
from clients.wire.records import MAX_REASON, REFUSED, WITHHELD, reason_of, values_of, view_of
from clients.wire.texts import MOST_JSON, RecordError, one_line, shortened
from strategies.exchange.exchange import Exchange, Posted

MOST_WITHHELD = 16
"""Parts that an answer may leave out, each with a row: there are fewer questions that a node may refuse."""
MOST_NAMES = 4096
"""Of the records of a reply, and of the values of a record."""
LONGEST_KEY = 2**16
"""Characters of a name; a ledger is under the text of its pipeline."""
MOST_VALUES = 2**20
"""Of one list, such as a score of each example."""
MOST_IN_ALL = 2**26
"""Characters, bytes and values of all records together."""

FaultIn = Callable[[int, Message], str]
"""(partition, reply that is no error) -> why it cannot be used, or ""."""


class TooFewReplies(RuntimeError):  # noqa: N818 (the field's word for it)
    """A round in which too few clients sent a usable reply."""


class Rows(Protocol):
    """Receiver of rows."""

    def row(self, task: Task, *, metric: str, value: float | None, **fields: Any) -> None:
        """Adds one number."""


class Answers(dict[int, Message]):
    """Partition -> usable reply, in the order of the requests.

    Attributes:
        refused: Partition whose node's configuration does not allow the request -> the node's reason.
        failed: Partition whose reply cannot be used -> the reason.
    """

    def __init__(self) -> None:
        super().__init__()
        self.refused: dict[int, str] = {}
        self.failed: dict[int, str] = {}


class GuardedExchange:
    """Send requests, return usable replies, and write a row for every unusable reply and for omitted content.

    ``min_usable`` is the least share of requested clients with a usable reply, at least one client; 0 allows all to fail.
    """

    def __init__(self, exchange: Exchange, rows: Rows, min_usable: float = 0.0) -> None:
        self.exchange = exchange
        self.rows = rows
        self.min_usable = min_usable

    def config(self, task: Task, **values: str | int | float | bool) -> ConfigRecord:
        """The ``config`` record that every message carries."""
        return self.exchange.config(task, **values)

    def ask(
        self,
        task: Task,
        message_type: str,
        contents: Mapping[int, RecordDict],
        fault_in: FaultIn | None = None,
        *,
        at_least: float | None = None,
    ) -> Answers:
        """Send one message to each partition and return the replies that can be used; ``TooFewReplies`` below ``min_usable``."""
        return self.receive(task, self.post(message_type, contents), fault_in, at_least=at_least)

    def post(self, message_type: str, contents: Mapping[int, RecordDict]) -> Posted:
        """Send without waiting; ``receive`` waits."""
        return self.exchange.post(message_type, contents)

    def receive(
        self, task: Task, posted: Posted, fault_in: FaultIn | None = None, *, at_least: float | None = None
    ) -> Answers:
        """The usable replies to ``post``; see ``check``."""
        replies = self.exchange.wait(posted)
        return self.check(task, posted.message_type, list(posted.contents), replies, fault_in, at_least=at_least)

    def check(
        self,
        task: Task,
        message_type: str,
        requested: Sequence[int],
        replies: Mapping[int, Message],
        fault_in: FaultIn | None = None,
        *,
        at_least: float | None = None,
    ) -> Answers:
        """Return the usable replies; write a row for each other reply, and for omitted content.

        A client that refuses the request has not failed: the share ``at_least`` (else ``min_usable``) is of the others.
        ``fault_in`` returns further reasons, besides an error, why a reply is unusable.

        Raises:
            TooFewReplies: When too few can be used.
        """
        good, reasons, standing = Answers(), [], []
        for partition in requested:
            reply = replies.get(partition)
            if reply is not None and reply.has_error() and reply.error.code == REFUSED:
                good.refused[partition] = reason_of(reply)
                self._row(task, "refused", partition, f"{message_type}: {good.refused[partition]}")
                continue
            standing.append(partition)
            reason = self._reason(partition, reply, fault_in)
            if reply is not None and not reason:
                self._record_withheld(task, message_type, partition, reply)
                good[partition] = reply
                continue
            good.failed[partition] = reason
            reasons.append(f"client {partition}: {reason}")
            self._row(task, "failed", partition, f"{message_type}: {reason}")
        if share := self.min_usable if at_least is None else at_least:
            require_enough(task, message_type, standing, list(good), share, reasons[:1])
        return good

    def _reason(self, partition: int, reply: Message | None, fault_in: FaultIn | None) -> str:
        if reply is None:
            return f"no reply within {self.exchange.timeout:g} s"
        if reply.has_error():
            return reason_of(reply)
        return oversized(reply.content) or unreadable(reply) or (fault_in(partition, reply) if fault_in else "")

    def _record_withheld(self, task: Task, message_type: str, partition: int, reply: Message) -> None:
        """Write a row for each part that an answer leaves out, up to ``MOST_WITHHELD``, and one for the others."""
        reasons = list(values_of(reply, WITHHELD).values())
        for reason in reasons[:MOST_WITHHELD]:
            text = reason if isinstance(reason, str) else shortened(reason)
            self._row(task, "refused", partition, f"{message_type}: {text[:MAX_REASON]}")
        if (more := len(reasons) - MOST_WITHHELD) > 0:
            message = f"{message_type}: {more} more parts were withheld; at most {MOST_WITHHELD} are recorded"
            self._row(task, "refused", partition, message)

    def _row(self, task: Task, status: str, partition: int, message: str) -> None:
        text = one_line(message, MAX_REASON)  # it may quote what a client sent
        self.rows.row(task, metric=CLIENT.name, value=None, status=status, client=partition, message=text)


def require_enough(
    task: Task, what: str, requested: Sequence[int], good: Sequence[int], min_usable: float, reasons: Sequence[str] = ()
) -> None:
    """Raise ``TooFewReplies`` if no requested partition, or a share below ``min_usable``, sent a usable reply."""
    if requested and len(good) < max(1, min_usable * len(requested)):
        why = f"; first reason: {reasons[0]}" if reasons else ""
        raise TooFewReplies(
            f"round {task.round}, {task.plan.pipeline or 'no defence'}: {len(good)} of {len(requested)} {what} replies are usable, "
            f"min-usable = {min_usable} asks for more{why}"
        )


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
    sizes = [_size(one) for one in value]
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


def fault(reply: Message, reference: Mapping[str, np.ndarray], record: str = "arrays") -> str:
    """Reason why a reply's arrays of a record cannot be used, or "".

    Refused are missing records, names, shapes or dtypes other than those of ``reference`` (such as the global model), and NaN or
    infinite values. So are metrics that are not single numbers, and counts of examples that are not positive whole numbers: they
    are the weights of the average, and the client chooses them.
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
    return _fault_in_numbers(reply)


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


def _fault_in_numbers(reply: Message) -> str:
    found = reply.content.get("metrics")
    if not isinstance(found, MetricRecord):
        return "the reply has no 'metrics'"
    count = found.get("num-examples")
    if not isinstance(count, int) or count <= 0:
        return f"metrics: num-examples is {shortened(count)}, expected a positive whole number"
    lists = [name for name, value in found.items() if isinstance(value, list)]
    return f"metrics: {shortened(lists[0])} is a list, expected a number" if lists else ""
