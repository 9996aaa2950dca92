"""A Ray cluster of two nodes, which the test starts on this machine: both work, and the run outlives one of them."""

import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from simulations.runtime.launch import free_port
from tests.lines import read_lines
from tests.ray_paths import needs_ray_workers
from tests.simulations.runtime.runtimes import BINARIES, PATIENCE, SMALL, marked, pairs, wait_until

pytestmark = needs_ray_workers


ATTACK = "InvertingGradients(iterations=1000)"


@dataclass(frozen=True)
class Cluster:
    """Two nodes of one core each, at an address; ``raylets``: their processes, that of the head first."""

    address: str
    raylets: tuple[psutil.Process, psutil.Process]

    def workers(self, at: int) -> list[str]:
        """Names of the actors whose processes node ``at`` holds."""
        names = []
        for process in self.raylets[at].children(recursive=True):
            with suppress(psutil.NoSuchProcess, IndexError):
                names.append(process.cmdline()[0].removeprefix("ray::").partition(".")[0])
        return names

    def kill(self, at: int) -> None:
        """SIGKILL to a node, as when its machine fails: its workers end with it."""
        for process in (*self.raylets[at].children(recursive=True), self.raylets[at]):
            with suppress(psutil.NoSuchProcess):
                process.kill()


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    env = {key: value for key, value in marked(tmp_path).items() if not key.startswith("RAY_")}
    env |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_worker_niceness": "0"}
    address = f"127.0.0.1:{free_port()}"
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="ray-") as sessions:
        raylets = []
        heads = ["--head", "--port", address.partition(":")[2], "--include-dashboard=false", "--temp-dir", sessions]
        try:
            for options in (["--node-ip-address=127.0.0.1", *heads], ["--address", address]):
                command = [str(BINARIES / "ray"), "start", *options, "--num-cpus", "1", "--num-gpus", "0"]
                subprocess.run(command, env=env, check=True, capture_output=True, timeout=PATIENCE)
                known = {raylet.pid for raylet in raylets}
                raylets += [one for one in _ours(tmp_path) if one.name() == "raylet" and one.pid not in known]
            yield Cluster(address, (raylets[0], raylets[1]))
        finally:
            for process in _ours(tmp_path):
                with suppress(psutil.NoSuchProcess):
                    process.kill()


def _ours(tmp_path: Path) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            if process.environ().get("FEDVEIL_TEST") == str(tmp_path) and process.pid != os.getpid():
                found.append(process)
    return found


@pytest.mark.slow
def test_two_nodes_run_clients_and_attacks_and_one_may_be_lost(cluster: Cluster, tmp_path: Path) -> None:
    """The other node is killed in training, when both have worked: its jobs start anew on the head, and none is missing."""
    out = tmp_path / "run"
    changes = {"rounds": 10, "train-limit": 4800, "local-epochs": 2, "attack-rounds": "all", "attack-workers": 2}
    settings = {**SMALL, **changes, "probe-attacks": ATTACK, "defenses": ""}
    command = [str(BINARIES / "fedveil"), "run", "--out", str(out), "--clients", "4"]
    told, environment = tmp_path / "told.txt", {**os.environ, "RAY_ADDRESS": cluster.address}
    with told.open("w") as file:
        process = subprocess.Popen(
            [*command, *pairs(settings)], stdout=file, stderr=file, cwd=tmp_path, env=environment
        )
    try:
        seen: tuple[set[str], set[str]] = (set(), set())

        def both_work() -> bool:
            for at in range(2):
                seen[at].update(cluster.workers(at))
            working = all({"ClientAppActor", "_Worker"} <= names for names in seen)
            return process.poll() is not None or (working and rounds_of(out) > 0)

        wait_until(both_work, "two nodes did not both work")
        assert 0 < rounds_of(out) < changes["rounds"], f"{seen} {told.read_text()}"
        cluster.kill(1)
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
