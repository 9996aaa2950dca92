"""Runs in this process, and what they leave: rows, and the messages that crossed the wire."""

import copy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Message

from simulations import server_app
from simulations.experiment.experiment import Experiment
from simulations.server_app import run_experiment
from tests.lines import read_lines
from tests.local_grid import LocalGrid, Tamper


def rows_in(settings: Experiment) -> list[dict[str, Any]]:
    return read_lines(Path(settings.output_dir) / "rows.jsonl")


def rows_of(settings: Experiment, tamper: Tamper | None = None) -> list[dict[str, Any]]:
    """The rows of a run."""
    run_experiment(LocalGrid(settings.num_clients, tamper), settings)
    return rows_in(settings)


def untimed(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows without what measures time."""
    kept = [row for row in rows if "second" not in row["metric"]]
    return [{key: value for key, value in row.items() if key not in ("seconds", "computed_on")} for row in kept]


@pytest.fixture
def no_report(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of no concern to rows, and the longest part of so short a run."""
    monkeypatch.setattr(server_app, "write_report", lambda path: path)


@dataclass
class Wire:
    """Everything that crossed the wire: (partition, type, request, reply)."""

    messages: list[tuple[int, str, Message, Message]] = field(default_factory=list)

    def __call__(self, partition: int, request: Message, reply: Message) -> Message:
        self.messages.append((partition, request.metadata.message_type, request, copy.deepcopy(reply)))
        return reply

    def of(self, message_type: str) -> list[tuple[int, Message, Message]]:
        """The messages of one type, in the order sent."""
        return [(at, request, reply) for at, kind, request, reply in self.messages if kind == message_type]
