"""Runs in this process, and what they leave: rows, and the messages that crossed the wire."""

import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Message

from simulations.experiment.experiment import Experiment
from simulations.server_app import run_experiment
from simulations.settings.errors import ConfigError
from tests.lines import read_lines
from tests.local_grid import LocalGrid, Tamper

Cases = list[tuple[dict[str, Any], tuple[str, ...]]]
"""Changes of settings, and what their one error says."""


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


def assert_refused(make: Callable[..., Experiment], cases: Cases, folder: Path) -> None:
    """Each change of good settings ends a run with all of its texts before anything is trained."""
    for at, (changes, said) in enumerate(cases):
        grid, good = LocalGrid(2), make(folder / str(at)).to_mapping()
        with pytest.raises(ConfigError) as caught:
            run_experiment(grid, Experiment.from_mapping({**good, **changes}))
        assert all(part in str(caught.value) for part in said), (changes, str(caught.value))
        assert {kind for kind, _ in grid.sent} <= {"query.partition", "query.setup"}, changes


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
