"""Separate random streams for answers to a curious server: the app's own streams continue as without an audit."""

from __future__ import annotations

import hashlib
import random
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from flwr.app import Context, Message

from clients.messages.node import Call, draws_from_seed, partition_of


@contextmanager
def own_streams(start: bytes) -> Iterator[None]:
    """Context in which torch (on the processor), numpy and Python draw from streams seeded by ``start``; theirs resume after it.

    Were they only kept, a mod would add the same noise to every probe and to the app's own update: the server could subtract it.
    """
    before: Any = random.getstate(), np.random.get_state()
    seeds = np.frombuffer(hashlib.blake2b(start, digest_size=24).digest(), np.uint64)
    try:
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(int(seeds[0] >> np.uint64(1)))
            np.random.seed(seeds[1:2].view(np.uint32))
            random.seed(int(seeds[2]))
            yield
    finally:
        random.setstate(before[0])
        np.random.set_state(before[1])


def in_own_streams(answer: Call) -> Call:
    """Wrap a function of an app so that it draws from its own streams, with every mod around it, the app's included."""

    def answered(message: Message, context: Context) -> Message:
        with own_streams(_start(message, context)):
            return answer(message, context)

    return answered


def _start(message: Message, context: Context) -> bytes:
    """Start of a random stream: the request's content in a simulation, so that runs repeat; otherwise a secret."""
    if not draws_from_seed(context):
        return secrets.token_bytes(32)
    content = [sorted(record.items()) for record in message.content.config_records.values()]
    return repr((message.metadata.message_type, partition_of(context), content)).encode()
