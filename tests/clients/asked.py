"""One node and the server that asks it, by messages that take the wire format."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from flwr.app import Message, RecordDict

from clients.task.task import Task
from clients.wire.records import REFUSALS, to_record
from strategies.exchange.exchange import Exchange
from tests.local_grid import LocalGrid


class Asked:
    """A node with training and test images, of which the operator's configuration is given; ``folder`` is that of its secret."""

    def __init__(
        self, folder: Path, randomness: str = "secret", train: Sequence[int] = range(40), test: Sequence[int] = range(20),
        **node_config: Any,
    ) -> None:  # fmt: skip
        config = {"secret-dir": str(folder), **{key.replace("_", "-"): value for key, value in node_config.items()}}
        self.grid = LocalGrid(1, randomness=randomness, node_config={0: config})
        self.context = self.grid.contexts[100]
        self.state = self.context.state
        self.state["indices"] = to_record({"train": torch.tensor(train), "test": torch.tensor(test)})
        self.exchange = Exchange(self.grid, {0: 100}, 300.0)

    def __call__(self, message_type: str, task: Task, records: dict[str, Any] | None = None, **config: Any) -> Message:
        content = RecordDict({"config": self.exchange.config(task, **config), **(records or {})})
        return self.exchange(message_type, {0: content})[0]


def refused(reply: Message, why: str = "") -> bool:
    """Whether a node declined as a policy does, and its reason says this."""
    return reply.has_error() and reply.error.code in REFUSALS and why in str(reply.error.reason)


def allowed_by(key: str) -> str:
    return f"may allow it by {key} in the node's configuration"
