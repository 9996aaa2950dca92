"""What the tests of Flower's real runtimes share: short runs, changed copies of the app, a deployment, kills."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from simulations.experiment.experiment import Experiment
from simulations.runtime.launch import LocalRuntime, Resources, free_port
from simulations.runtime.local_run import STARTS, engine_failure

BINARIES = Path(sys.executable).parent
PATIENCE = 1800
"""Seconds until a test gives up on what may never end; how fast the machine is decides nothing."""
SMALL: dict[str, Any] = {
    "dataset": "mnist-5k", "model": "lenet", "batch-size": 32, "learning-rate": 0.1, "momentum": 0.5,
    "train-limit": 200, "test-limit": 60, "rounds": 2, "local-epochs": 1, "defenses": "GaussianNoise(std=0.02)",
    "probe-attacks": "InvertingGradients(iterations=30); LabelInference()", "probe-targets": 1, "attack-rounds": "first",
    "adaptive": False, "attack-workers": 1,
}  # fmt: skip


def config(out: Path, **changes: Any) -> dict[str, Any]:
    values = {**SMALL, "output-dir": str(out), **{key.replace("_", "-"): value for key, value in changes.items()}}
    return Experiment.from_mapping(values).to_mapping()


def pairs(values: dict[str, Any]) -> list[str]:
    return [part for key, value in values.items() for part in ("-s", f"{key}={value}")]


def overrides(values: Mapping[str, Any]) -> str:
    """Settings as ``flwr run --run-config`` takes them."""
    return " ".join(f"{key}={json.dumps(value)}" for key, value in values.items())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    out = tmp_path / "run"
    out.mkdir()
    return out


def run_in(runtime: LocalRuntime, values: dict[str, Any], clients: int, app: Path | None = None) -> str:
    """Runs an app to its end; returns Flower's status. Where Ray did not start before the app did anything, it is run again."""
    for start in range(1, STARTS + 1):
        begin = runtime.log_path.stat().st_size if runtime.log_path.is_file() else 0
        process = runtime.start(values, Resources(clients), app)
        assert process.wait(timeout=PATIENCE) is not None
        failed = engine_failure(runtime.log_path.read_bytes()[begin:].decode(errors="replace"))
        begun = (Path(values["output-dir"]) / "config.json").exists() if "output-dir" in values else False
        if start == STARTS or begun or not any(one in failed for one in NOT_IN_TIME):
            break
    return runtime.status()


NOT_IN_TIME = ("timed out during startup", "Failed to start GCS", "Timed out")
"""What Ray says where one of its processes did not start in time."""


def binaries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, **scripts: str) -> None:
    """Lets a runtime find shell scripts in place of commands of Flower (``flower_superlink``), beside the real others."""
    folder = tmp_path / "bin"
    folder.mkdir()
    # No link to Python, by which it would be another environment's.
    for name, text in {"python": f'exec "{sys.executable}" "$@"', **scripts}.items():
        script = folder / name.replace("_", "-")
        script.write_text(f"#!/bin/sh\n{text}\n")
        script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{BINARIES}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr(sys, "executable", str(folder / "python"))


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


def listening(process: psutil.Process) -> list[str]:
    """The addresses that a process listens on; none when it has ended."""
    try:
        return [one.laddr.ip for one in process.net_connections("inet") if one.status == psutil.CONN_LISTEN]
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return []


def flower_env() -> dict[str, str]:
    """An environment for Flower's commands, which reports nothing and asks for no newer version."""
    path = f"{BINARIES}{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, "FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1", "PATH": path}


@pytest.fixture
def deployment(tmp_path: Path) -> Iterator[tuple[Path, dict[str, str]]]:
    """A SuperLink and two SuperNodes on loopback; yields a folder with Flower's configuration, and the environment."""
    link, nodes = free_port(), [free_port(), free_port()]
    env = flower_env()
    commands = [["flower-superlink", "--insecure", "--disable-runtime-dependency-installation", "--host", "127.0.0.1",
                 "--port", str(link)]]  # fmt: skip
    commands += [
        ["flower-supernode", "--insecure", "--superlink", f"127.0.0.1:{link}", "--port", str(port),
         "--node-config", f"partition-id={at} num-partitions=2 probes=true audits=true transmissions=-1 "
         f"secret-dir='{tmp_path / 'secrets'}'"]
        for at, port in enumerate(nodes)
    ]  # fmt: skip
    cli = tmp_path / "cli"
    cli.mkdir()
    (cli / "config.toml").write_text(f'[superlink.loopback]\naddress = "127.0.0.1:{link}"\ninsecure = true\n')
    with running(commands[:1], tmp_path, env):
        wait_until(lambda: listens(link), "the SuperLink did not start")
        with running(commands[1:], tmp_path, env):
            yield cli, {**env, "FLWR_HOME": str(cli)}


@contextmanager
def running(
    commands: Sequence[Sequence[str]], tmp_path: Path, env: Mapping[str, str]
) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Processes of Flower, each with a home of its own and its output in ``home*.log``; ended with all that they started."""
    started: list[subprocess.Popen[bytes]] = []
    try:
        for command in commands:
            home = tmp_path / f"home{len(list(tmp_path.glob('home*.log')))}"
            home.mkdir()
            with home.with_suffix(".log").open("w") as log:
                started.append(
                    subprocess.Popen(command, env={**env, "FLWR_HOME": str(home)}, cwd=home, stdout=log, stderr=log)
                )
        yield started
    finally:
        families = [psutil.Process(one.pid).children(recursive=True) for one in started if one.poll() is None]
        for process in started:
            process.terminate()
        _, alive = psutil.wait_procs([child for family in families for child in family], timeout=8)
        for child in alive:
            child.kill()
