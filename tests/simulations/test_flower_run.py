"""The real thing: Flower's runtimes, Ray's processes, kills. Minutes; `pytest -m "not slow"` leaves it out."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from simulations.experiment import Experiment
from simulations.launch import PACKAGES, ROOT, LocalRuntime, Resources, free_port
from simulations.progress import read_progress
from simulations.run_directory import read_lines
from tests.simulations.test_federation import untimed

pytestmark = pytest.mark.slow

BINARIES = Path(sys.executable).parent
PATIENCE = 1800
"""Seconds until a test gives up on what may never end; how fast the machine is decides nothing."""
SMALL: dict[str, Any] = {
    "dataset": "mnist-5k", "model": "lenet", "batch-size": 32, "learning-rate": 0.1, "momentum": 0.5,
    "train-limit": 200, "test-limit": 60, "rounds": 2, "local-epochs": 1, "defenses": "GaussianNoise(std=0.02)",
    "probe-attacks": "InvertingGradients(iterations=30); LabelInference()", "probe-targets": 1, "attack-rounds": "first",
    "adaptive": False,
}  # fmt: skip


def config(out: Path, **changes: Any) -> dict[str, Any]:
    values = {**SMALL, "output-dir": str(out), **{key.replace("_", "-"): value for key, value in changes.items()}}
    return Experiment.from_mapping(values).to_mapping()


def pairs(values: dict[str, Any]) -> list[str]:
    return [part for key, value in values.items() for part in ("-s", f"{key}={value}")]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    out = tmp_path / "run"
    out.mkdir()
    return out


def run_in(runtime: LocalRuntime, values: dict[str, Any], clients: int, app: Path | None = None) -> str:
    """Runs an app to its end; returns Flower's status."""
    process = runtime.start(values, Resources(clients), app)
    assert process.wait(timeout=PATIENCE) is not None
    return runtime.status()


def test_plain_flwr_run_completes_with_the_audit(folder: Path, tmp_path: Path) -> None:
    """``flwr run . --stream`` with nothing but an output folder, from an empty home, two clients, as Flower's defaults have it."""
    with LocalRuntime(tmp_path / "log.txt") as runtime:
        overrides = " ".join(
            f"{key}={json.dumps(value)}" for key, value in {**SMALL, "output-dir": str(folder)}.items()
        )
        command = [str(BINARIES / "flwr"), "run", str(ROOT), "--stream", "--run-config", overrides]
        done = subprocess.run(
            command, env=runtime.env, cwd=runtime.home, capture_output=True, text=True, timeout=PATIENCE, check=False
        )
        assert runtime.status() == "finished:completed", done.stdout[-3000:]
    rows = read_lines(folder / "rows.jsonl")
    assert [row["n"] for row in rows if row["metric"] == "psnr" and row["attack"].startswith("Inv")] == [2] * 4
    assert not [row for row in rows if row["status"] in ("failed", "refused")]
    assert {row["setting"]["randomness"] for row in rows if row["attack"]} == {"follows from the seed (simulation)"}
    assert (folder / "report.html").stat().st_size > 10_000


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


def marked(tmp_path: Path) -> dict[str, str]:
    """An environment whose processes can be told from those of anything else on this machine."""
    return {**os.environ, "FEDVEIL_TEST": str(tmp_path)}


def leftovers(tmp_path: Path) -> list[list[str]]:
    mine = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("FEDVEIL_TEST") == str(tmp_path) and process.status() != psutil.STATUS_ZOMBIE:
                mine.append(process.cmdline())
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return mine


def broken_app(tmp_path: Path, module: str, marker: str, line: str) -> Path:
    """A copy of the app with a line added before the only place of a module that holds the marker."""
    app = tmp_path / "fedveil"
    for package in PACKAGES:
        shutil.copytree(ROOT / package, app / package, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", app / "pyproject.toml")
    text = (app / module).read_text()
    assert text.count(marker) == 1
    (app / module).write_text(text.replace(marker, line + marker))
    return app


def test_a_client_that_dies_costs_its_own_update(folder: Path, tmp_path: Path) -> None:
    """Its neighbours' messages wait for a new worker, however busy the machine is; see also tests/clients/test_lost_worker.py."""
    values = config(folder, defenses="", attack_rounds="", num_clients=4)
    line = "        if self.data.partition == 1 and self.task.round == 1:\n            __import__('os')._exit(1)\n"
    app = broken_app(tmp_path, "clients/training.py", "        start = time.perf_counter()\n", line)
    with LocalRuntime(tmp_path / "log.txt") as runtime:
        status = run_in(runtime, values, 4, app)
    assert status == "finished:completed", (tmp_path / "log.txt").read_text()[-3000:]
    rows = read_lines(folder / "rows.jsonl")
    assert [(row["client"], row["round"]) for row in rows if row["status"] == "failed"] == [(1, 1)]
    assert [row["n"] for row in rows if row["metric"] == "train-loss"] == [3, 4]
    assert {row["n"] for row in rows if row["metric"] == "test-accuracy"} == {60}


def test_kill_9_and_resume_give_the_rows_of_an_unbroken_run(tmp_path: Path) -> None:
    settings = {**SMALL, "rounds": 4, "attack-rounds": "first,last", "local-epochs": 3, "train-limit": 2000}
    fedveil = [str(BINARIES / "fedveil"), "run"]
    whole = tmp_path / "whole"
    done = subprocess.run(
        [*fedveil, "--out", str(whole), *pairs(settings)], capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert done.returncode == 0, done.stderr
    assert f"report: {whole / 'report.html'}" in done.stdout

    killed = tmp_path / "killed"
    running = subprocess.Popen([*fedveil, "--out", str(killed), *pairs(settings)], stdout=subprocess.DEVNULL)
    try:
        wait_until(lambda: read_progress(killed).get("round", 0) >= 1)
        assert not read_progress(killed)["finished"]
    finally:
        kill_tree(running.pid)
    resumed = subprocess.run(
        [*fedveil, "--resume", str(killed)],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
        env=marked(tmp_path),
    )
    assert resumed.returncode == 0, resumed.stderr
    assert untimed(read_lines(killed / "rows.jsonl")) == untimed(read_lines(whole / "rows.jsonl"))
    # Who was told to end may need a moment.
    wait_until(lambda: not leftovers(tmp_path), "processes were left over")


def wait_until(condition: Callable[[], bool], why: str = "nothing happened") -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, f"{why} within {PATIENCE} s"
        time.sleep(0.2)


def kill_tree(pid: int) -> None:
    """SIGKILL to the command and to all that it started, as an out-of-memory killer or a reboot would."""
    home = next(
        process.environ()["FLWR_HOME"] for process in psutil.Process(pid).children(recursive=True)
        if "FLWR_HOME" in process.environ()
    )  # fmt: skip
    os.kill(pid, signal.SIGKILL)
    for process in psutil.process_iter():
        try:
            if process.environ().get("FLWR_HOME") == home:
                process.kill()
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@pytest.fixture
def deployment(tmp_path: Path) -> Iterator[tuple[Path, dict[str, str]]]:
    """A SuperLink and two SuperNodes on loopback; yields a folder with Flower's configuration, and the environment."""
    link, nodes = free_port(), [free_port(), free_port()]
    env = {
        **os.environ, "FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1",
        "PATH": f"{BINARIES}{os.pathsep}{os.environ['PATH']}",
    }  # fmt: skip
    commands = [["flower-superlink", "--insecure", "--disable-runtime-dependency-installation", "--host", "127.0.0.1",
                 "--port", str(link)]]  # fmt: skip
    commands += [
        ["flower-supernode", "--insecure", "--superlink", f"127.0.0.1:{link}", "--port", str(port),
         "--node-config", f"partition-id={at} num-partitions=2 probes=true audits=true transmissions=-1 audit-steps=true "
         f"secret-dir='{tmp_path / 'secrets'}'"]
        for at, port in enumerate(nodes)
    ]  # fmt: skip
    started = []
    for at, command in enumerate(commands):
        home = tmp_path / f"home{at}"
        home.mkdir()
        with (tmp_path / f"home{at}.log").open("w") as log:
            started.append(
                subprocess.Popen(command, env={**env, "FLWR_HOME": str(home)}, cwd=home, stdout=log, stderr=log)
            )
        if at == 0:
            wait_until(lambda: listens(link), "the SuperLink did not start")
    cli = tmp_path / "cli"
    cli.mkdir()
    (cli / "config.toml").write_text(f'[superlink.loopback]\naddress = "127.0.0.1:{link}"\ninsecure = true\n')
    try:
        yield cli, {**env, "FLWR_HOME": str(cli)}
    finally:
        families = [
            psutil.Process(process.pid).children(recursive=True) for process in started if process.poll() is None
        ]
        for process in started:
            process.terminate()
        _, alive = psutil.wait_procs([child for family in families for child in family], timeout=8)
        for child in alive:
            child.kill()


def test_the_same_app_runs_on_a_superlink_with_two_supernodes(
    folder: Path, deployment: tuple[Path, dict[str, str]]
) -> None:
    cli, env = deployment
    settings = {
        **SMALL,
        "rounds": 1,
        "defenses": "",
        "num-clients": 2,
        "output-dir": str(folder),
        "share-images": False,
    }
    overrides = " ".join(f"{key}={json.dumps(value)}" for key, value in settings.items())
    command = ["flwr", "run", str(ROOT), "loopback", "--stream", "--run-config", overrides]
    subprocess.run(command, env=env, cwd=cli, capture_output=True, text=True, timeout=PATIENCE, check=False)
    progress = read_progress(folder)
    assert progress.get("finished"), progress
    rows = read_lines(folder / "rows.jsonl")
    audited = [row for row in rows if row["attack"].startswith("Inverting") and row["metric"] == "ssim"]
    assert [(row["reference"], row["n"]) for row in audited] == [("original", 2), ("transformed", 2)]
    assert not [row for row in rows if row["status"] in ("failed", "refused")]
    # Nothing but the workers of a simulation draws from the seed; each node made its own file, at the first of its processes.
    assert {row["setting"]["randomness"] for row in rows if row["attack"]} == {"each node's own secret"}
    files = sorted((cli.parent / "secrets").iterdir())
    assert [file.name for file in files] == ["partition-0.secret", "partition-1.secret"]
    assert len({file.read_text() for file in files}) == 2
    drawn = read_lines(folder / "pictures" / "index.jsonl")
    assert not drawn, "pictures of private images left a client that does not share them"
