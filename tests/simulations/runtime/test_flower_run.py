"""The real thing: Flower's runtimes and Ray's processes."""

import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from clients.process.ray_cluster import local_cluster, session_folder
from simulations.experiment.experiment import Experiment
from simulations.runtime.guardian import processes_of
from simulations.runtime.launch import ROOT, LocalRuntime
from simulations.runtime.progress import read_progress
from simulations.runtime.user_cache import PREFIX, VARIABLE
from simulations.server_app import run_experiment
from simulations.settings.defaults import DEFAULT_CLIENTS
from tests.lines import read_lines
from tests.local_grid import LocalGrid
from tests.ray_paths import needs_ray_workers
from tests.simulations.inference.test_run import inference_experiment
from tests.simulations.outsourced.test_run import outsourced_experiment
from tests.simulations.runtime.runtimes import (
    BINARIES,
    PATIENCE,
    SMALL,
    deployment,
    folder,
    kill_tree,
    leftovers,
    listening,
    marked,
    overrides,
    pairs,
    wait_until,
)
from tests.simulations.short_runs import untimed
from tests.simulations.split.test_run import split_experiment

__all__ = ["deployment", "folder"]  # fixtures

FEDVEIL = str(BINARIES / "fedveil")
QUERIES = "QueryInversion(iterations=5)"


@needs_ray_workers
@pytest.mark.essential
def test_plain_flwr_run_completes_with_the_audit(folder: Path, tmp_path: Path) -> None:
    """``flwr run . --stream`` from an empty home, as Flower's defaults have it, but that one process serves both clients.

    What it starts listens on loopback alone.
    """
    small = {
        "model": "mlp", "width": 4, "train-limit": 100, "test-limit": 20, "rounds": 1, "attack-workers": 0, "update-attacks": "",
        "defenses": "", "probe-attacks": "InvertingGradients(iterations=3)",
    }  # fmt: skip
    settings = SMALL | small | {"output-dir": str(folder)}
    with LocalRuntime(tmp_path / "log.txt") as runtime:
        command = [str(BINARIES / "flwr"), "run", str(ROOT), "--stream", "--run-config", overrides(settings)]
        command += ["--federation-config", "init-args-num-cpus=1 client-resources-num-cpus=1"]
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
    assert [row["n"] for row in rows if row["metric"] == "psnr" and row["attack"].startswith("Inv")] == [2] * 2
    assert not [row for row in rows if row["status"] in ("failed", "refused")]
    assert {row["card"]["randomness"] for row in rows if row["attack"]} == {"follows from the seed (simulation)"}
    assert (folder / "report.html").stat().st_size > 10_000


@needs_ray_workers
@pytest.mark.slow
def test_a_failed_run_is_told_and_leaves_no_process(tmp_path: Path) -> None:
    """Flower's own command ends with 0 here; fedveil's must not."""
    command = [FEDVEIL, "run", "--out", str(tmp_path / "run"), "--clients", "3", *pairs(SMALL)]
    command += ["-s", "client-timeout=0.001", "-s", "min-usable=1.0"]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=PATIENCE, check=False, cwd=tmp_path, env=marked(tmp_path)
    )
    assert done.returncode == 1
    assert "the run failed" in done.stderr
    assert "client ran longer than client-timeout = 0.001 s" in " ".join(done.stderr.split())
    # A process that was told to end may need a moment.
    wait_until(lambda: not leftovers(tmp_path), "processes were left over")


@needs_ray_workers
@pytest.mark.slow
def test_kill_9_and_resume_give_the_rows_of_an_unbroken_run(tmp_path: Path) -> None:
    settings = {**SMALL, "rounds": 4, "attack-rounds": "first,last", "local-epochs": 3, "train-limit": 2000}
    # No kill breaks it, and no runtime carries its messages: neither is a reason for other numbers.
    whole = {**settings, "num-clients": DEFAULT_CLIENTS, "attack-workers": 0, "output-dir": str(tmp_path / "whole")}
    run_experiment(LocalGrid(DEFAULT_CLIENTS), Experiment.from_mapping(whole))
    killed = tmp_path / "killed"
    # As where Python may write no bytecode beside the sources.
    none, cache = tmp_path / "none", tmp_path / "cache"
    env = {**marked(tmp_path), VARIABLE: "1", PREFIX: str(none), "XDG_CACHE_HOME": str(cache)}
    running = subprocess.Popen(
        [FEDVEIL, "run", "--out", str(killed), *pairs(settings)], stdout=subprocess.DEVNULL, env=env
    )
    try:
        wait_until(lambda: read_progress(killed).get("round", 0) >= 1)
        assert not read_progress(killed)["finished"]
    finally:
        kill_tree(running.pid)
    resume = [FEDVEIL, "run", "--resume", str(killed)]
    resumed = subprocess.run(resume, capture_output=True, text=True, timeout=PATIENCE, check=False, env=env)
    assert resumed.returncode == 0, resumed.stderr
    assert f"report: {killed / 'report.html'}" in resumed.stdout
    assert untimed(read_lines(killed / "rows.jsonl")) == untimed(read_lines(tmp_path / "whole" / "rows.jsonl"))
    wait_until(lambda: not leftovers(tmp_path), "processes were left over")
    kept = [str(path) for path in cache.rglob("*.pyc")]
    # Of torch, and of what only Flower's simulation and Ray's workers import: they, and not the command, wrote it.
    for source in ("torch/nn/modules/linear.", "flwr/simulation/app.", "flwr/simulation/ray_transport/ray_actor."):
        assert [path for path in kept if source in path], source
    assert not [path for path in kept if "fedveil-flwr-" in path], "bytecode of the run's own copy"
    assert not none.exists()


@pytest.mark.slow
def test_other_scenarios_work_on_two_supernodes(tmp_path: Path, deployment: tuple[Path, dict[str, str]]) -> None:
    """Each message starts a process of its own: a client's half and its draws are what the node has kept."""
    cli, env = deployment
    rows: dict[str, list[dict[str, Any]]] = {}
    attacked = {
        "batch_size": 8, "train_limit": 100, "test_limit": 60, "rounds": 1, "probe_targets": 1,
        "attack_rounds": "first",
    }  # fmt: skip
    trained = {
        "train_edge": True, "labels": "client", "batches_per_message": 8,
        "smashed_attacks": "TokenDecoder(iterations=5)",
    }  # fmt: skip
    cuts = {"cuts": "conv2,conv4", "query_attacks": QUERIES, "rounds": 1, "probe_targets": 1, "min_usable": 0.5}
    for make, changes in (
        (split_experiment, attacked | trained),
        (outsourced_experiment, attacked | {"defenses": "InstaHide()", "batches_per_message": 5, "model_attacks": ""}),
        (inference_experiment, cuts),
    ):
        settings = make(tmp_path / make.__name__, **changes)
        name, out = settings.scenario, tmp_path / make.__name__
        out.mkdir()
        command = ["flwr", "run", str(ROOT), "loopback", "--stream", "--run-config", overrides(settings.to_mapping())]
        subprocess.run(command, env=env, cwd=cli, capture_output=True, text=True, timeout=PATIENCE, check=False)
        assert read_progress(out).get("finished"), (name, read_progress(out))
        rows[name] = read_lines(out / "rows.jsonl")
        assert {row["card"]["randomness"] for row in rows[name] if row["attack"]} == {"each node's own secret"}
        assert not read_lines(out / "pictures" / "index.jsonl")
        assert not [row for row in rows[name] if row["status"] == "failed"]
    assert {row["n"] for row in rows["split"] if row["metric"] == "train-loss"} == {80}
    assert {r["n"] for r in rows["split"] if r["metric"] == "psnr" and r["attack"].startswith("Token")} == {4}
    seen = [row for row in rows["outsourced"] if (row["attack"], row["metric"]) == ("AsUploaded()", "psnr")]
    found = {(row["defense"], row["reference"]): row["value"] for row in seen}
    mixed = "InstaHide(num_mixed=4)"
    assert {row["n"] for row in seen} == {4}
    assert found["", "original"] == found["", "transformed"] == found[mixed, "transformed"] == 100.0
    assert found[mixed, "original"] < 20
    assert {row["value"] for row in rows["outsourced"] if row["metric"] == "uploaded-images"} == {80}
    # Each node asks once and allows no repetition: at a second cut the same images would be sent under new noise.
    first, second = ([row for row in rows["inference"] if row["round"] == at] for at in (2, 3))
    assert [row["value"] for row in first if row["metric"] == "queries"] == [40]
    assert [row["n"] for row in first if (row["metric"], row["attack"]) == ("ssim", QUERIES)]
    # Four attacked images are too few for a verdict; all else was answered.
    assert {row["status"] for row in first} == {"ok", "under-powered"}
    refused = [row for row in second if row["status"] == "refused"]
    assert sorted(row["client"] for row in refused) == [0, 1]
    assert all("repeats" in row["message"] for row in refused)
