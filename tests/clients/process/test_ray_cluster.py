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

from clients.process.ray_cluster import PATIENCE, local_cluster, patient, ray_reason, session_folder
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
    """A Ray in a process of its own."""

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
        """Whether the head answers who knows its port and says this token."""
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
    """An environment with Ray's own defaults, but for how it starts workers beneath ``uv run``."""
    plain = {key: value for key, value in os.environ.items() if not key.startswith("RAY_")}
    return plain | {"RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0", "TMPDIR": "/tmp"}


@pytest.mark.long
def test_the_runtimes_ray_listens_on_loopback_alone_and_obeys_nobody_without_the_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
def test_a_ray_of_flowers_own_simulation_listens_on_loopback_although_it_was_imported_before() -> None:
    first = "import sys; sys.argv[0] = 'flwr-simulation'; import ray, clients"
    with Cluster(bare(), first) as cluster:
        assert not outside(cluster.listens_on)


@pytest.mark.long
@pytest.mark.parametrize("ours", ["", "ray, "])
def test_a_long_path_for_temporary_files_stops_no_ray(tmp_path: Path, ours: str) -> None:
    """As on clusters that name the folder after the job: a socket's path has 107 bytes at most, and Ray appends 68."""
    long = tmp_path / "scratch-of-job-number-1234567890"
    long.mkdir()
    first = f"import sys; sys.argv[0] = 'flwr-simulation'; import {ours}clients"
    with Cluster(bare() | {"TMPDIR": str(long)}, first) as cluster:
        assert not Path(cluster.socket).is_relative_to(long)


def test_a_runtimes_home_is_where_rays_sockets_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    long = tmp_path / "scratch-of-job-number-1234567890"
    long.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    with LocalRuntime(tmp_path / "log") as runtime:
        assert runtime.env["RAY_TMPDIR"] == str(runtime.home)
    monkeypatch.setattr(tempfile, "tempdir", None)
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="") as short:
        monkeypatch.setattr(tempfile, "tempdir", short)
        with LocalRuntime(tmp_path / "log") as runtime:
            assert runtime.home.parent == Path(short)


@pytest.mark.long
def test_ray_by_itself_listens_everywhere_and_obeys_anybody() -> None:
    """What the others prevent. Where this fails, Ray has closed the door itself, and ``clients.process.ray_cluster`` may go."""
    with Cluster(bare()) as cluster:
        assert outside(cluster.listens_on)
        assert cluster.obeys("")


def test_what_somebody_has_set_for_ray_stays_as_it_is() -> None:
    chosen = {"RAY_AUTH_MODE": "disabled", "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "1"}
    assert local_cluster(chosen) == {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "1"}
    tokens = {local_cluster({})["RAY_AUTH_TOKEN"] for _ in range(2)}
    assert len(tokens) == 2
    assert {len(token) for token in tokens} == {64}


def test_a_cluster_that_is_joined_keeps_its_ways(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    for key in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_TMPDIR"):
        monkeypatch.delenv(key, raising=False)
    with LocalRuntime(tmp_path / "log") as runtime:
        assert not {"RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_TMPDIR"} & runtime.env.keys()


def test_a_folder_whose_sockets_would_have_too_long_a_path_is_not_used() -> None:
    assert session_folder(Path("/tmp/fedveil-flwr-abcdefgh")) == {"RAY_TMPDIR": "/tmp/fedveil-flwr-abcdefgh"}
    assert not session_folder(Path("/var/folders/zz/zyxvpxvq6csfxvn_n0000000000000/T/fedveil-flwr-abcdefgh"))


STARTED = """
import json, os, sys
os.environ["RAY_NUM_REDIS_GET_RETRIES"] = "2"
from clients.process.ray_cluster import keep_ray_here, start_ray
keep_ray_here()
import ray
from ray._private import node, ray_constants

told, Client = [], node.GcsClient

def refused(**_):
    raise ConnectionError("refused")

def tell(line):
    told.append(line)
    if sys.argv[1] == "later":
        node.GcsClient, ray_constants.NUM_REDIS_GET_RETRIES = Client, 90

node.GcsClient = refused
try:
    start_ray(tell, num_cpus=1, include_dashboard=False, logging_level="ERROR", log_to_driver=False)
    told.append(ray.get(ray.remote(lambda: "works").remote()))
except Exception as error:
    told.append(f"{type(error).__name__}: {error}")
with open(sys.argv[2], "w") as file:
    json.dump(told, file)
"""
"""Ray's control server starts, but this process does not reach it: until the second start ("later"), or never."""


@pytest.mark.long
@pytest.mark.parametrize(("reached", "end"), [("later", "works"), ("never", "RuntimeError: Failed to start GCS.")])
def test_a_ray_that_does_not_start_is_started_once_more(tmp_path: Path, reached: str, end: str) -> None:
    out = tmp_path / "told.json"
    command = [sys.executable, "-c", STARTED, reached, str(out)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600, check=False)
    assert out.is_file(), done.stderr[-3000:]
    told = json.loads(out.read_text())
    assert told[0] == "Ray failed: Failed to start GCS.; started again"
    assert len(told) == 2
    assert told[1].startswith(end)


def test_the_reason_of_a_failed_start_is_one_line() -> None:
    assert ray_reason("Failed to start GCS.  Last 1 lines of error files:\n x C y\n.Please check /a for details.") == (
        "Failed to start GCS."
    )
    late = "The current node timed out during startup. This could happen because\nthe GCS has become overloaded."
    assert ray_reason(late) == late.replace("\n", " ")


@pytest.mark.long
def test_rays_parts_wait_longer_for_each_other_unless_the_environment_says_how_long() -> None:
    """As Ray itself reads it, also a Ray of another release."""
    program = (
        "from ray._raylet import Config; from ray._private import ray_constants as constants\n"
        "print(constants.NUM_REDIS_GET_RETRIES, Config.py_gcs_connect_timeout_s(), "
        "constants.GCS_SERVER_REQUEST_TIMEOUT_SECONDS, Config.worker_register_timeout_seconds())"
    )
    bare = {name: value for name, value in os.environ.items() if name not in PATIENCE}
    for own in ({}, {"RAY_NUM_REDIS_GET_RETRIES": "7"}):
        env = bare | own
        read = subprocess.run(
            [sys.executable, "-c", program], env=env | patient(env), capture_output=True, text=True, check=True
        )
        assert read.stdout.split() == list((PATIENCE | own).values())
