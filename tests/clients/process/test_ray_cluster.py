"""What a Ray of ours listens on, and whom it obeys: asked of real processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from ipaddress import ip_address
from pathlib import Path

import grpc
import pytest
from typer.testing import CliRunner

from clients.process.ray_cluster import local_cluster, session_folder, spaced_path
from simulations.cli import app
from simulations.runtime.launch import ROOT, LocalRuntime

CLUSTER = """
import json, os, sys
{first}
import psutil, ray
ray.init(num_cpus=1, include_dashboard=False, logging_level="ERROR", log_to_driver=False)

@ray.remote
class Actor:
    def pid(self):
        return os.getpid()

actor = Actor.remote()
worker = ray.get(actor.pid.remote())
me = psutil.Process()
heard = {{}}
for process in [me, *me.children(recursive=True)]:
    heard[process.pid] = [c.laddr.ip for c in process.net_connections("inet") if c.status == psutil.CONN_LISTEN]
node = ray.nodes()[0]
print(json.dumps([ray.get_runtime_context().gcs_address, heard, worker, node["RayletSocketName"]]), flush=True)
sys.stdin.read()
"""
"""Starts Ray, tells where its processes listen, and lives until its input ends."""


class Cluster:
    def __init__(self, environment: Mapping[str, str], first: str = "") -> None:
        command = [sys.executable, "-c", CLUSTER.format(first=first)]
        self._process = subprocess.Popen(
            command, env=dict(environment), cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def __enter__(self) -> Cluster:
        assert self._process.stdout is not None
        too_long = threading.Timer(180, self._process.kill)
        too_long.start()
        self.address, heard, worker, self.socket = json.loads(self._process.stdout.readline())
        too_long.cancel()
        assert len(heard) >= 4, "driver, head, raylet and a worker were expected"
        assert heard[str(worker)], "a worker listens, on loopback or not"
        self.listens_on = {ip for each in heard.values() for ip in each}
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate(timeout=60)

    def obeys(self, token: str) -> bool:
        with grpc.insecure_channel(self.address) as channel:
            ask = channel.unary_unary("/ray.rpc.NodeInfoGcsService/GetClusterId")
            call = ask.future(b"", metadata=[("authorization", f"Bearer {token}")] if token else [], timeout=30)
            code = call.code()  # waits
        assert code in (grpc.StatusCode.OK, grpc.StatusCode.UNAUTHENTICATED)
        return code is grpc.StatusCode.OK


def outside(addresses: set[str]) -> set[str]:
    found = set()
    for text in addresses:
        address = ip_address(text)
        mapped = getattr(address, "ipv4_mapped", None)
        if not (mapped or address).is_loopback:
            found.add(text)
    return found


def bare() -> dict[str, str]:
    plain = {key: value for key, value in os.environ.items() if not key.startswith("RAY_")}
    return plain | {"RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0", "TMPDIR": "/tmp"}


@pytest.mark.long
def test_the_runtimes_ray_obeys_its_token_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for key in [key for key in os.environ if key.startswith("RAY_")]:
        monkeypatch.delenv(key)
    with LocalRuntime(tmp_path / "log") as runtime, Cluster(runtime.env) as cluster:
        assert not outside(cluster.listens_on)
        assert not cluster.obeys("")
        assert not cluster.obeys("0" * 64)
        assert cluster.obeys(runtime.env["RAY_AUTH_TOKEN"])
        # Sockets and logs are in a folder that nobody else may enter, and go with it.
        assert Path(cluster.socket).is_relative_to(runtime.home)
        assert runtime.home.stat().st_mode & 0o777 == 0o700
    assert not runtime.home.exists()


@pytest.mark.long
@pytest.mark.parametrize("first", ["import clients", "import ray, clients"])
def test_a_ray_of_flowers_own_simulation_listens_on_loopback_below_a_short_path(tmp_path: Path, first: str) -> None:
    # Some clusters name the folder after the job: a socket's path has 107 bytes at most, and Ray appends 68.
    long = tmp_path / "scratch-of-job-number-1234567890"
    long.mkdir()
    with Cluster(bare() | {"TMPDIR": str(long)}, f"import sys; sys.argv[0] = 'flwr-simulation'; {first}") as cluster:
        assert not outside(cluster.listens_on)
        assert not Path(cluster.socket).is_relative_to(long)


def test_a_runtimes_home_is_where_rays_sockets_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for key in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_TMPDIR"):
        monkeypatch.delenv(key, raising=False)
    assert session_folder(Path("/tmp/fedveil-flwr-abcdefgh")) == {"RAY_TMPDIR": "/tmp/fedveil-flwr-abcdefgh"}
    assert not session_folder(Path("/var/folders/zz/zyxvpxvq6csfxvn_n0000000000000/T/fedveil-flwr-abcdefgh"))
    long = tmp_path / "scratch-of-job-number-1234567890"
    long.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    with LocalRuntime(tmp_path / "log") as runtime:
        assert runtime.env["RAY_TMPDIR"] == str(runtime.home)
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="") as short:
        monkeypatch.setattr(tempfile, "tempdir", short)
        with LocalRuntime(tmp_path / "log") as runtime:
            assert runtime.home.parent == Path(short)


def test_a_path_with_a_space_is_refused_before_flower_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray starts workers by an unquoted path; of files below TMPDIR it takes another folder."""
    assert local_cluster({"TMPDIR": "/a b"})["RAY_TMPDIR"] == "/tmp"
    assert (session_folder(Path("/a b")), session_folder(Path("/ab"))) == ({}, {"RAY_TMPDIR": "/ab"})
    monkeypatch.setattr(sys, "executable", "/a b/bin/python")
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    assert spaced_path() == "/a b/bin/python"
    for words, code in (([], 2), (["--dry-run", "--in-process"], 0)):
        told = CliRunner().invoke(app, ["run", "--out", str(tmp_path / "run"), *words])
        assert told.exit_code == code, told.output
        assert ("Ray starts no worker from a path with a space" in " ".join(told.output.split())) == (code == 2)
