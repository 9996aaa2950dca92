"""Setting nodes up: the folder of the app that they are told."""

from __future__ import annotations

from pathlib import Path

import pytest
from flwr.app import Message

from clients.wire.records import values_of
from simulations.runtime import nodes
from strategies.exchange.exchange import Exchange
from tests.local_grid import LocalGrid
from tests.simulations.federated.test_federation import experiment

ROOT = Path(__file__).resolve().parents[3]


def test_workers_of_a_simulation_are_told_the_very_folder_that_the_server_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its parent would not do: another checkout may lie in it. A deployed node has a copy of its own."""
    told = []

    def listen(partition: int, request: Message, reply: Message) -> Message:
        told.append(values_of(request, "config")["app-dir"])
        return reply

    for in_simulation in (True, False):
        monkeypatch.setattr(nodes, "_in_simulation", lambda simulated=in_simulation: simulated)
        nodes.set_up(Exchange(LocalGrid(2, listen), {0: 100, 1: 101}, 60.0), experiment(tmp_path / "run"))
    assert told == [str(ROOT)] * 2 + [""] * 2
