"""What the server accepts: a reply that cannot be used safely is refused with a reason, never averaged or trained on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from flwr.app import ArrayRecord, Message

from clients.records import WITHHELD, reason_of, values_of
from clients.task import Task
from strategies.exchange import is_refusal


class TooFewReplies(RuntimeError):  # noqa: N818 (the field's word for it)
    """A round in which too few clients sent something usable."""


class Rows(Protocol):
    """Where rows go."""

    def row(self, task: Task, *, metric: str, value: float | None, **fields: Any) -> None:
        """Adds one number."""


def usable_replies(
    task: Task,
    what: str,
    asked: Sequence[int],
    replies: Mapping[int, Message],
    fault_in: Callable[[int, Message], str],
    *,
    rows: Rows,
    min_usable: float,
    timeout: float,
) -> dict[int, Message]:
    """Replies that can be used, by partition in the order asked; each of the others costs a row, and so does what they leave out.

    Whoever refuses the question, as its node's configuration says, has not failed: the share is of the others.

    Args:
        task: Orders of the round.
        what: Type of the messages.
        asked: Partitions that were asked.
        replies: Partition -> its reply, if it came.
        fault_in: Why a partition's reply cannot be used, or "".
        rows: Where refusals are recorded.
        min_usable: Share of those asked that must be usable, at least one; 0 lets all fail.
        timeout: Seconds that a client had, for the message.

    Raises:
        TooFewReplies: When they are fewer than ``min_usable`` of those asked.
    """
    good, reasons, standing = {}, [], []
    for partition in asked:
        reply = replies.get(partition)
        if reply is not None and refusal_rows(task, what, partition, reply, rows):
            continue
        standing.append(partition)
        reason = f"no reply within {timeout:g} s" if reply is None else fault_in(partition, reply)
        if reply is not None and not reason:
            good[partition] = reply
            continue
        reasons.append(f"client {partition}: {reason}")
        rows.row(task, metric="client", value=None, status="failed", client=partition, message=f"{what}: {reason}")
    if min_usable:
        require_enough(task, what, standing, list(good), min_usable, reasons[:1])
    return good


def refusal_rows(task: Task, what: str, partition: int, reply: Message, rows: Rows) -> bool:
    """Writes a row for a refused question and one for each thing that an answer leaves out; whether it was refused."""
    refused = is_refusal(reply)
    # The record of a reply that is an error cannot be read.
    for reason in [reason_of(reply)] if refused else [] if reply.has_error() else values_of(reply, WITHHELD).values():
        rows.row(task, metric="client", value=None, status="refused", client=partition, message=f"{what}: {reason}")
    return refused


def require_enough(
    task: Task, what: str, asked: Sequence[int], good: Sequence[int], min_usable: float, reasons: Sequence[str] = ()
) -> None:
    """Raises ``TooFewReplies`` when less than ``min_usable`` of the partitions asked, or none, sent something usable."""
    if asked and len(good) < max(1, min_usable * len(asked)):
        why = f"; first reason: {reasons[0]}" if reasons else ""
        raise TooFewReplies(
            f"round {task.round}, {task.plan.pipeline or 'no defence'}: {len(good)} of {len(asked)} {what} replies are usable, "
            f"min-usable = {min_usable} asks for more{why}"
        )


def failure(reply: Message) -> str:
    """Why a reply is an error, or ""; of replies that carry no arrays nothing else matters."""
    return reason_of(reply) if reply.has_error() else ""


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
        return f"{record}: names differ from what was asked for at {odd[:3]} ({len(odd)} in all)"
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
