"""Distance between an app's own reply and a step of SGD on ``data``: the client compares, the server receives a number.

A server could name another reply to learn in which direction the client's gradient points. So a client answers once, for its last
reply, which it knows by a digest.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Context, Message
from torch import Tensor

from clients.messages.node import Call

KEPT = "fedveil-last-reply"
"""Record of a context's state that holds the digest."""


class UnknownReplyError(ValueError):
    """A reply that is not the node's last one, or that was checked before."""


def remembering(answer: Call) -> Call:
    """Wrap a function of an app to keep a digest of its last message and reply."""

    def answered(message: Message, context: Context) -> Message:
        received = list(message.content.array_records.values())
        before = _digest(received) if len(received) == 1 else ""  # first: an app may change what it was sent
        reply = answer(message, context)
        sent = [] if reply.has_error() else list(reply.content.array_records.values())
        if before and len(sent) == 1:
            context.state[KEPT] = ConfigRecord({"digest": before + _digest(sent)})
        return reply

    return answered


def require_last_reply(message: Message, context: Context) -> tuple[ArrayRecord, ArrayRecord]:
    """The node's last message and reply, as returned by the server and forgotten afterwards; else ``UnknownReplyError``."""
    sent: Any = message.content["sent"]
    came: Any = message.content["reply"]
    kept: Any = context.state.pop(KEPT, None) or {}
    if kept.get("digest") != _digest([sent]) + _digest([came]):
        raise UnknownReplyError("this is not the last reply of this node, or the reply was checked before")
    return sent, came


def distance(sent: Mapping[str, Tensor], came: Mapping[str, Tensor], assumed: Mapping[str, Tensor]) -> float:
    """Length of (received - assumed) over that of (assumed - sent): 0 for a reply as assumed."""
    away = sum(float((came[name].double() - value.double()).square().sum()) for name, value in assumed.items())
    step = sum(float((value.double() - sent[name].double()).square().sum()) for name, value in assumed.items())
    return float((away / step) ** 0.5) if step else float("inf")


def _digest(records: Iterable[ArrayRecord]) -> str:
    digest = hashlib.blake2b(digest_size=32)
    for record in records:
        for name, array in record.items():
            digest.update(repr((name, array.dtype, tuple(array.shape), len(array.data))).encode())
            digest.update(array.data)
    return digest.hexdigest()
