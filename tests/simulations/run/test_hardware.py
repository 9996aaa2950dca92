"""Machines of a run: what fits on them, and what is refused."""

from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from simulations.cli import app
from simulations.run.hardware import Hardware, Node
from simulations.settings.errors import ConfigError

pytestmark = pytest.mark.usefixtures("as_its_own_process")

CLUSTER = Hardware((Node(8, 0), Node(4, 2)), "h:1")


def test_workers_are_counted_over_nodes_and_memory_on_one() -> None:
    assert CLUSTER.workers(100, 3) == 1, "clients that need a card run where there is one"
    assert Hardware((Node(8, 0), Node(4, 0)), "h:1").workers(100, 3) == 2 + 1
    assert CLUSTER.workers_on_one(100, 3) == 2
    assert CLUSTER.workers(2, 1) == CLUSTER.workers_on_one(2, 1) == 2
    assert CLUSTER.workers(9, 16) == CLUSTER.workers_on_one(9, 16) == 1
    assert CLUSTER.cards == 2
    assert str(CLUSTER) == "Ray cluster h:1: 2 nodes, 12 cores, 2 graphics cards"
    assert str(Hardware((Node(1, 1),), "h:1")) == "Ray cluster h:1: 1 node, 1 core, 1 graphics card"


def test_a_worker_must_fit_on_one_node() -> None:
    CLUSTER.require(8, 2.0)
    CLUSTER.require(1, 0.5)
    CLUSTER.require_attack_cards(2.0)
    share, card = CLUSTER.require, CLUSTER.require_attack_cards
    refused: list[tuple[Callable[[], None], str]] = [
        (lambda: share(9, 0.0), "--cpus-per-client is 9; the largest node of the cluster has 8"),
        (lambda: share(1, 3.0), r"--gpus-per-client is 3; allowed: 0 to 2, the graphics cards of the largest node"),
        (lambda: share(1, -0.5), r"--gpus-per-client is -0\.5; allowed: 0 to 2"),
        (lambda: card(3.0), "attack-gpus is 3; allowed: 0 to 2"),
        (lambda: share(1, 1.5), r"is 1\.5; allowed: 0 to 1, or a whole number of graphics cards"),
        (lambda: card(1.5), r"is 1\.5; allowed: 0 to 1, or a whole number of graphics cards"),
    ]
    for require, told in refused:
        with pytest.raises(ConfigError, match=told):
            require()


def test_a_cluster_that_cannot_be_used_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    result = CliRunner(env={"RAY_ADDRESS": "nowhere"}).invoke(app, ["run", "--out", str(tmp_path / "out")])
    assert result.exit_code == 2
    told = "RAY_ADDRESS is 'nowhere', and no cluster answers there; allowed: HOST:PORT"
    assert told in " ".join(result.output.split())
    assert not (tmp_path / "out").exists()
