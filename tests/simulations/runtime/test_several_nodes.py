"""A Ray cluster of two nodes, which the test starts on this machine: both work, and the run outlives one of them."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from ray.cluster_utils import Cluster

from tests.lines import read_lines
from tests.ray_paths import needs_ray_workers
from tests.simulations.runtime.runtimes import BINARIES, PATIENCE, SMALL, pairs, wait_until

pytestmark = needs_ray_workers


ATTACK = "InvertingGradients(iterations=1000)"


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    """Two nodes of one core each."""
    for name in [name for name in os.environ if name.startswith("RAY_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    monkeypatch.setenv("RAY_worker_niceness", "0")
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="ray-") as sessions:
        head = {"node_ip_address": "127.0.0.1", "include_dashboard": False, "temp_dir": sessions}
        nodes = Cluster(initialize_head=True, head_node_args=head, shutdown_at_exit=False)
        try:
            nodes.add_node()
            yield nodes
        finally:
            nodes.shutdown()


def workers(node: Any) -> list[str]:
    """Names of the actors whose processes a node holds."""
    names = []
    for process in psutil.Process(node.all_processes["raylet"][0].process.pid).children(recursive=True):
        with suppress(psutil.NoSuchProcess, IndexError):
            names.append(process.cmdline()[0].removeprefix("ray::").partition(".")[0])
    return names


@pytest.mark.slow
def test_two_nodes_run_clients_and_attacks_and_one_may_be_lost(cluster: Cluster, tmp_path: Path) -> None:
    """The other node is killed in training, when both have worked: its jobs start anew on the head, and none is missing."""
    out, (other,) = tmp_path / "run", cluster.worker_nodes
    changes = {"rounds": 10, "train-limit": 4800, "local-epochs": 2, "attack-rounds": "all", "attack-workers": 2}
    settings = {**SMALL, **changes, "probe-attacks": ATTACK, "defenses": ""}
    command = [str(BINARIES / "fedveil"), "run", "--ray-address", cluster.address, "--out", str(out), "--clients", "4"]
    told = tmp_path / "told.txt"
    with told.open("w") as file:
        process = subprocess.Popen([*command, *pairs(settings)], stdout=file, stderr=file, cwd=tmp_path)
    try:
        seen: tuple[set[str], set[str]] = (set(), set())

        def both_work() -> bool:
            for names, node in zip(seen, (cluster.head_node, other), strict=True):
                names.update(workers(node))
            working = all({"ClientAppActor", "_Worker"} <= names for names in seen)
            return process.poll() is not None or (working and rounds_of(out) > 0)

        wait_until(both_work, "two nodes did not both work")
        assert 0 < rounds_of(out) < changes["rounds"], f"{seen} {told.read_text()}"
        cluster.remove_node(other, allow_graceful=False)
        assert process.wait(timeout=PATIENCE) == 0, told.read_text()
    finally:
        process.kill()
    rows = read_lines(out / "rows.jsonl")
    assert {row["round"] for row in rows if row["metric"] == "psnr" and row["attack"] == ATTACK} == set(range(1, 12))
    assert not [row for row in rows if row["status"] == "failed"]
    assert [row["value"] for row in rows if row["metric"] == "clients-failed"] == [0] * 10
    assert {row["computed_on"].partition(",")[0] for row in rows if row["metric"] == "attack-seconds"} == {"cpu"}
    assert "Ray cluster" in (out / "report.html").read_text(encoding="utf-8")


def rounds_of(out: Path) -> int:
    """Rounds of training that are complete."""
    path = out / "rows.jsonl"
    rows = read_lines(path) if path.is_file() else []
    return max((row["round"] for row in rows if row["metric"] == "test-accuracy"), default=0)
