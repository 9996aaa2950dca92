"""Machines of a run: what fits on them, and what is refused."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ray
from typer.testing import CliRunner

from simulations.cli import app
from simulations.forecast.hardware import Hardware, Node, hardware_at, this_machine
from simulations.runtime.launch import LocalRuntime, Resources
from simulations.settings.errors import ConfigError

CLUSTER = Hardware((Node(8, 0), Node(4, 2)), "h:1")


def test_workers_are_counted_over_nodes_and_memory_on_one() -> None:
    assert CLUSTER.workers(100, 3) == 1, "clients that need a card run where there is one"
    assert Hardware((Node(8, 0), Node(4, 0)), "h:1").workers(100, 3) == 2 + 1
    assert CLUSTER.workers_on_one(100, 3) == 2
    assert CLUSTER.workers(2, 1) == CLUSTER.workers_on_one(2, 1) == 2
    assert CLUSTER.cards == 2
    assert str(CLUSTER) == "Ray cluster h:1: 2 nodes, 12 cores, 2 graphics cards"
    assert str(Hardware((Node(1, 1),), "h:1")) == "Ray cluster h:1: 1 node, 1 core, 1 graphics card"


def test_a_worker_must_fit_on_one_node() -> None:
    CLUSTER.require(8, 2.0)
    CLUSTER.require_attack_cards(2.0)
    with pytest.raises(ConfigError, match="--cpus-per-client is 9; the largest node of the cluster has 8"):
        CLUSTER.require(9, 0.0)
    with pytest.raises(
        ConfigError, match=r"--gpus-per-client is 3\.0; allowed: 0 to 2, the graphics cards of the largest node"
    ):
        CLUSTER.require(1, 3.0)
    with pytest.raises(ConfigError, match="attack-gpus is 3; allowed: 0 to 2"):
        CLUSTER.require_attack_cards(3.0)
    for require in (lambda: CLUSTER.require(1, 1.5), lambda: CLUSTER.require_attack_cards(1.5)):
        with pytest.raises(ConfigError, match=r"is 1\.5; allowed: 0 to 1, or a whole number of graphics cards"):
            require()


def test_living_nodes_with_a_core_are_the_hardware_of_a_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = [
        {"Alive": True, "Resources": {"CPU": 4.0}},
        {"Alive": False, "Resources": {"CPU": 64.0}},
        {"Alive": True, "Resources": {"CPU": 2.0, "GPU": 1.0}},
        {"Alive": True, "Resources": {"memory": 1.0}},
    ]
    given: dict[str, Any] = {}
    monkeypatch.setattr(ray, "init", lambda **arguments: given.update(arguments))
    monkeypatch.setattr("socket.create_connection", lambda *_: SimpleNamespace(close=lambda: None))
    monkeypatch.setattr(ray, "nodes", lambda: nodes)
    assert hardware_at("h:1") == Hardware((Node(4, 0), Node(2, 1)), "h:1")
    assert given["address"] == "h:1"
    monkeypatch.setattr(ray, "nodes", lambda: nodes[3:])
    with pytest.raises(ConfigError, match="--ray-address is 'h:1', and no node of that cluster offers a core"):
        hardware_at("h:1")
    assert hardware_at("") == this_machine()


def test_where_no_cluster_answers_nothing_is_written(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["run", "--ray-address", "nowhere", "--out", str(tmp_path / "out")])
    assert result.exit_code == 2
    assert "--ray-address is 'nowhere', and no cluster answers there; allowed: HOST:PORT" in " ".join(
        result.output.split()
    )
    assert not (tmp_path / "out").exists()


def test_a_run_in_one_process_joins_no_cluster(tmp_path: Path) -> None:
    options = ["--in-process", "--ray-address", "h:1", "--out", str(tmp_path / "out")]
    result = CliRunner().invoke(app, ["run", *options])
    assert result.exit_code == 2
    assert "--ray-address is 'h:1', and --in-process starts no Ray: leave one of them out" in " ".join(
        result.output.split()
    )


def test_flower_joins_the_cluster_and_starts_no_ray(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    with LocalRuntime(tmp_path / "log", "h:1") as runtime:
        assert runtime.env["RAY_ADDRESS"] == "h:1"
    assert "num-cpus" not in Resources(3, ray_address="h:1").federation_config().replace("resources-num-cpus", "")
    assert f"init-args-num-cpus={os.cpu_count()}" in Resources(3).federation_config()
