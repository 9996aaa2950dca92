"""A private local Flower runtime for one run: started on a free port, watched, and stopped."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from clients.process.ray_cluster import LONGEST_FOLDER, SHORT, local_cluster, patient, session_folder, takes_sockets
from simulations.runtime.guardian import Guardian, end_runtime
from simulations.settings.common import environment_of

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("clients", "strategies", "defenses", "attacks", "simulations")
BESIDE = ("LICENSE", "README.md")
"""Files that Flower wants in the app's folder; a wheel holds them, and ``pyproject.toml``, as ``simulations/app_*``."""
PORT_VARIABLE = "FLWR_LOCAL_SUPERLINK_HTTP_API_PORT"
PORTS = range(20_000, 32_000)
PORT_TRIES = 100
KEPT_LINES = 60
"""Of each log of a runtime that failed."""
ENDING = (signal.SIGTERM, signal.SIGHUP)
"""Signals that ask the command to end, besides Ctrl-C."""


@dataclass(frozen=True)
class Resources:
    """Resources of a simulation.

    Attributes:
        clients: Number of simulated clients.
        cpus_per_client: Whole CPUs of each client worker; the pool holds as many workers as fit.
        gpus_per_client: Share of a GPU of each client worker.
        cores: What all of them together may use; 0 for all of the machine.
        attack_share: Share of a graphics card of each attack worker, where the setting leaves it open.
        machines: What the report says of cards and shares; empty: nothing.
        in_process: Clients work one after the other in the server's process, without Flower's runtime.
    """

    clients: int
    cpus_per_client: int = 1
    gpus_per_client: float = 0.0
    cores: int = 0
    attack_share: float = 0.0
    machines: str = ""
    in_process: bool = False

    def federation_config(self) -> str:
        """Text for ``flwr run --federation-config``."""
        pairs: dict[str, Any] = {
            "num-supernodes": self.clients,
            "client-resources-num-cpus": self.cpus_per_client,
            "client-resources-num-gpus": self.gpus_per_client,
            "init-args-logging-level": "'ERROR'",
            "init-args-num-cpus": max(self.cores or os.cpu_count() or 1, self.cpus_per_client),
        }
        return " ".join(f"{key}={value}" for key, value in pairs.items())


class LocalRuntime:
    """Flower's local runtime with a home, a port and processes of its own; use it as a context manager.

    Flower reuses whatever runtime answers on its usual port, with that runtime's environment, code and user. A free port and
    a temporary home keep runs, checkouts and users apart. On leaving, every process that carries this home is stopped; where this
    process is killed and cannot, a guardian does.
    """

    def __init__(self, log_path: Path) -> None:
        """``log_path``: gets what Flower logs."""
        self.log_path = log_path
        self.home = Path(tempfile.mkdtemp(prefix="fedveil-flwr-", dir=short_temporary_folder()))
        self._guardian = Guardian(self.home)
        binaries = Path(sys.executable).parent
        self.env = {
            **os.environ,
            "FLWR_HOME": str(self.home),
            PORT_VARIABLE: str(free_port()),
            "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
            "RAY_USAGE_STATS_ENABLED": os.environ.get("RAY_USAGE_STATS_ENABLED", "0"),  # Ray reports its use by default
            # Ray starts workers at niceness 15: beside anything else that computes, clients would hardly be scheduled.
            "RAY_worker_niceness": os.environ.get("RAY_worker_niceness", "0"),  # noqa: SIM112 (Ray's name)
            # Where fedveil was started by `uv run`, the simulation descends from it, and Ray would start its workers by uv anew.
            "RAY_ENABLE_UV_RUN_RUNTIME_ENV": os.environ.get("RAY_ENABLE_UV_RUN_RUNTIME_ENV", "0"),
            "COLUMNS": "200",  # else Flower breaks what it says of an error, paths included, at the width of this terminal
            "PATH": f"{binaries}{os.pathsep}{os.environ.get('PATH', '')}",
        }
        self.env |= patient(os.environ) | local_cluster(os.environ) | session_folder(self.home)
        # -P: the folder of the file is no place to import from.
        self.flower = [sys.executable, "-P", str(ROOT / "simulations" / "runtime" / "flower_command.py")]
        settings = '[superlink]\ndefault = "local"\n\n[superlink.local]\naddress = ":local-in-memory:"\n'
        (self.home / "config.toml").write_text(settings, encoding="utf-8")

    def __enter__(self) -> LocalRuntime:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(
        self, config: Mapping[str, Any], resources: Resources, app: Path | None = None
    ) -> subprocess.Popen[bytes]:
        """Submits the app (this one by default), streaming its log to ``log_path``; the process ends when the run does."""
        settings = self.home / "run.toml"
        settings.write_text(_toml(config), encoding="utf-8")
        command = [
            *self.flower, "run", str(app or app_folder(self.home, config)), "local", "--stream", "--run-config", str(settings),
            "--federation-config", resources.federation_config(),
        ]  # fmt: skip
        env = self.env | environment_of(resources.attack_share, resources.machines)
        with self.log_path.open("ab") as log:
            return subprocess.Popen(command, env=env, cwd=self.home, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def status(self) -> str:
        """The run's status as Flower reports it, such as "finished:completed"; "" for an unknown run."""
        done = subprocess.run(
            [*self.flower, "list", "local", "--format", "json"], env=self.env, cwd=self.home, capture_output=True,
            text=True, encoding="utf-8", errors="replace", timeout=600, check=False,
        )  # fmt: skip
        with suppress(ValueError, LookupError):  # of no answer, or no run
            return str(json.loads(done.stdout[done.stdout.index("{") :])["runs"][0]["status"])
        return ""

    def keep_logs(self) -> None:
        """Appends the end of the logs of the local SuperLink and of Ray's node manager, which go with the home, to ``log_path``."""
        for name in ("local-superlink/superlink.log", *(f"session_latest/logs/raylet.{end}" for end in ("out", "err"))):
            if (log := self.home / name).is_file():
                end = b"\n".join(log.read_bytes().split(b"\n")[-KEPT_LINES:])
                with self.log_path.open("ab") as kept:
                    kept.write(f"\n--- log of {log.name}\n".encode() + end)

    def stop(self, *, at_once: bool = False) -> None:
        """End every process of this runtime, the simulation first, and remove its home; ``at_once`` without asking."""
        with undisturbed():
            end_runtime(self.home, at_once=at_once)
            self._guardian.dismiss()


def short_temporary_folder() -> str:
    """The directory for temporary files, or ``/tmp`` where Ray could make no sockets in a home in it."""
    usual = tempfile.gettempdir()
    fits = takes_sockets(usual, LONGEST_FOLDER - len("/fedveil-flwr-abcdefgh"))
    return usual if fits or not os.access(SHORT, os.W_OK) else SHORT


@contextmanager
def undisturbed() -> Iterator[None]:
    """Context that ignores signals to end: a second one, as `uv run` sends, would interrupt the clean-up after the first."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, *ENDING)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def end_politely() -> None:
    """Make SIGTERM and SIGHUP, unless ignored, end this process by an exception, so that it stops its children first."""

    def end(number: int, _: object) -> None:
        for ending in ENDING:
            signal.signal(ending, signal.SIG_IGN)
        sys.exit(128 + number)

    for number in ENDING:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, end)


def free_port() -> int:
    """A free TCP port of the loopback address.

    It is below the ports of outgoing connections, and beside those of Ray's workers: hardly anything takes it before its use.
    """
    for _ in range(PORT_TRIES):
        port = PORTS.start + secrets.randbelow(len(PORTS))
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise RuntimeError(f"none of {PORT_TRIES} ports from {PORTS.start} to {PORTS.stop - 1} is free on 127.0.0.1")


def app_folder(scratch: Path, config: Mapping[str, Any]) -> Path:
    """The Flower app: a copy made in ``scratch``, since Flower looks at every file of a folder, environments included.

    Flower takes no setting that the app's own file does not name, and a scenario of another package has settings of its own: the
    copy's file names them, too.
    """
    checkout = (ROOT / "pyproject.toml").is_file() and (ROOT / "clients" / "app.py").is_file()
    folder, prefix = (ROOT, "") if checkout else (ROOT / "simulations", "app_")
    text = (folder / f"{prefix}pyproject.toml").read_text(encoding="utf-8")
    unnamed = config.keys() - tomllib.loads(text)["tool"]["flwr"]["app"]["config"].keys()
    app = scratch / "fedveil"
    for package in PACKAGES:
        shutil.copytree(ROOT / package, app / package, ignore=shutil.ignore_patterns("__pycache__"))
    for name in BESIDE:
        shutil.copy(folder / f"{prefix}{name}", app / name)
    head = "[tool.flwr.app.config]\n"
    text = text.replace(head, head + _toml({key: config[key] for key in sorted(unnamed)}), 1)
    (app / "pyproject.toml").write_text(text, encoding="utf-8")
    return app


def _toml(values: Mapping[str, Any]) -> str:
    """JSON's strings, numbers and booleans are valid TOML values."""
    return "".join(f"{key} = {json.dumps(value)}\n" for key, value in values.items())
