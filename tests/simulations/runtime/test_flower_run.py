"""The real thing: Flower's runtimes and Ray's processes. Minutes; `pytest -m "not slow"` leaves it out."""

from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path

import pytest

from clients.process.ray_cluster import local_cluster, session_folder
from simulations.runtime.guardian import processes_of
from simulations.runtime.launch import ROOT, LocalRuntime
from tests.lines import read_lines
from tests.simulations.runtime.runtimes import (
    BINARIES,
    PATIENCE,
    SMALL,
    broken_app,
    config,
    deployment,
    folder,
    leftovers,
    listening,
    marked,
    pairs,
    run_in,
    wait_until,
)

__all__ = ["deployment", "folder"]  # fixtures

pytestmark = pytest.mark.slow


@pytest.mark.essential
def test_plain_flwr_run_completes_with_the_audit(folder: Path, tmp_path: Path) -> None:
    """``flwr run . --stream`` with nothing but an output folder, from an empty home, two clients, as Flower's defaults have it.

    What it starts listens on loopback alone.
    """
    with LocalRuntime(tmp_path / "log.txt") as runtime:
        overrides = " ".join(
            f"{key}={json.dumps(value)}" for key, value in {**SMALL, "output-dir": str(folder)}.items()
        )
        command = [str(BINARIES / "flwr"), "run", str(ROOT), "--stream", "--run-config", overrides]
        ours = local_cluster({}).keys() | session_folder(runtime.home).keys()
        plain = {key: value for key, value in runtime.env.items() if key not in ours}
        # Flower's own command gives a SuperLink 15 seconds, and a busy machine needs more: here it is started beforehand.
        subprocess.run([*runtime.flower, "list", "local"], env=plain, cwd=runtime.home, check=True, capture_output=True)
        with (tmp_path / "told.txt").open("w") as told:
            process = subprocess.Popen(command, env=plain, cwd=runtime.home, stdout=told, stderr=told)
        heard = set()
        while process.poll() is None:
            heard |= {(one.name(), ip) for one in processes_of(runtime.home) for ip in listening(one)}
            time.sleep(1.0)
        assert runtime.status() == "finished:completed", (tmp_path / "told.txt").read_text()[-3000:]
    assert {"gcs_server", "raylet"} <= {name for name, _ in heard}
    assert not {(name, ip) for name, ip in heard if ip not in ("127.0.0.1", "::1", "::ffff:127.0.0.1")}
    rows = read_lines(folder / "rows.jsonl")
    assert [row["n"] for row in rows if row["metric"] == "psnr" and row["attack"].startswith("Inv")] == [2] * 4
    assert not [row for row in rows if row["status"] in ("failed", "refused")]
    assert {row["card"]["randomness"] for row in rows if row["attack"]} == {"follows from the seed (simulation)"}
    assert (folder / "report.html").stat().st_size > 10_000


@pytest.mark.slow
def test_a_failed_run_is_told_and_leaves_no_process(tmp_path: Path) -> None:
    """Flower's own command ends with 0 here; fedveil's must not."""
    command = [str(BINARIES / "fedveil"), "run", "--out", str(tmp_path / "run"), "--clients", "3", *pairs(SMALL)]
    command += ["-s", "client-timeout=0.001", "-s", "min-usable=1.0"]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=PATIENCE, check=False, cwd=tmp_path, env=marked(tmp_path)
    )
    assert done.returncode == 1
    assert "the run failed" in done.stderr
    assert "client ran longer than client-timeout = 0.001 s" in " ".join(done.stderr.split())
    # Who was told to end may need a moment.
    wait_until(lambda: not leftovers(tmp_path), "processes were left over")


@pytest.mark.slow
def test_a_client_that_dies_costs_its_own_update(folder: Path, tmp_path: Path) -> None:
    """Its neighbours' messages wait for a new worker, however busy the machine is; see also
    tests/clients/process/test_lost_worker.py."""
    values = config(folder, defenses="", attack_rounds="", num_clients=4)
    line = "        if self.data.partition == 1 and self.task.round == 1:\n            __import__('os')._exit(1)\n"
    app = broken_app(tmp_path, "clients/federated/client.py", "        start = time.perf_counter()\n", line)
    with LocalRuntime(tmp_path / "log.txt") as runtime:
        status = run_in(runtime, values, 4, app)
    assert status == "finished:completed", (tmp_path / "log.txt").read_text()[-3000:]
    rows = read_lines(folder / "rows.jsonl")
    assert [(row["client"], row["round"]) for row in rows if row["status"] == "failed"] == [(1, 1)]
    assert [row["n"] for row in rows if row["metric"] == "train-loss"] == [3, 4]
    assert {row["n"] for row in rows if row["metric"] == "test-accuracy"} == {60}


@pytest.mark.slow
def test_edge_cloud_inference_runs_on_a_superlink_with_two_supernodes(
    folder: Path, deployment: tuple[Path, dict[str, str]]
) -> None:
    """Each node asks once and allows no repetition: at a second cut the same images would be sent under new noise."""
    cli, env = deployment
    settings = {
        "scenario": "inference", "dataset": "mnist-5k", "model": "vgg_small", "cuts": "conv2,conv4", "batch-size": 16,
        "train-limit": 100, "test-limit": 40, "auxiliary-fraction": 0.8, "rounds": 1, "local-epochs": 1, "num-clients": 2,
        "defenses": "", "query-attacks": "QueryInversion(iterations=5)", "probe-targets": 1, "probe-images": 2,
        "adaptive": False, "attack-workers": 0, "min-usable": 0.5, "output-dir": str(folder), "share-images": False,
    }  # fmt: skip
    overrides = " ".join(f"{key}={json.dumps(value)}" for key, value in settings.items())
    command = ["flwr", "run", str(ROOT), "loopback", "--stream", "--run-config", overrides]
    subprocess.run(command, env=env, cwd=cli, capture_output=True, text=True, timeout=PATIENCE, check=False)
    rows = read_lines(folder / "rows.jsonl")
    first = [row for row in rows if row["round"] == 2]
    assert [row["value"] for row in first if row["metric"] == "queries"] == [40]
    assert [row["n"] for row in first if (row["metric"], row["attack"]) == ("ssim", settings["query-attacks"])]
    assert {row["card"]["randomness"] for row in first if row["attack"]} == {"each node's own secret"}
    # Four attacked images are too few for a verdict; all else was answered.
    assert {row["status"] for row in first} == {"ok", "under-powered"}
    refused = [row for row in rows if row["round"] == 3 and row["status"] == "refused"]
    assert sorted(row["client"] for row in refused) == [0, 1]
    assert all("repeats" in row["message"] for row in refused)
