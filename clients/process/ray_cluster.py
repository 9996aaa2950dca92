"""Ray: a cluster of this machine and this run alone, or workers on the nodes of one of several machines; no Flower here.

Ray's processes unpickle, and so run, what they are sent. By default they listen on every address of the machine, without
authentication. A simulation needs neither: its processes are on one machine, and know each other.
"""

from __future__ import annotations

import math
import os
import re
import secrets
import site
import socket
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

Variables = dict[str, str]
"""Of an environment."""
NO_OTHER_MACHINES = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
"""Ray's switch between clusters of several machines and one that binds to loopback; in spite of its name, Linux obeys it."""
MODE, TOKEN = "RAY_AUTH_MODE", "RAY_AUTH_TOKEN"
FILES = "RAY_TMPDIR"
PATIENCE = {
    "RAY_NUM_REDIS_GET_RETRIES": "90",
    "RAY_py_gcs_connect_timeout_s": "90",
    "RAY_gcs_server_request_timeout_seconds": "180",
    "RAY_worker_register_timeout_seconds": "180",
}
"""Variables of Ray 2.55 that say how long parts of it wait for each other at the start.

Two waits have none: 30 seconds each for the port of its control server (GCS) and for its node manager (raylet).
"""
_LOGS = re.compile(
    r"\s*Last \d+ lines of error files|\s*Please check \S+ for details|Traceback \(most recent call last\)"
)
ADDRESSES = "allowed: HOST:PORT, 'auto', or empty for this machine"
CONNECT_SECONDS = 10.0
QUIET = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}
"""Ray reports its use, and warns of a change of its defaults, unless these say otherwise."""
LONGEST_FOLDER = 35
"""Bytes: what Ray appends (68) must leave a socket's path below the 103 bytes that every Unix allows."""
SHORT = "/tmp"
"""For temporary files where ``TMPDIR`` is too long for Ray's sockets, as on clusters that name it after the job, or has a space."""


def local_cluster(environment: Mapping[str, str]) -> Variables:
    """Variables that make Ray bind to loopback and obey only processes with a token of 256 bits.

    Where ``TMPDIR`` takes no sockets (its path is too long, or has a space), Ray makes them in ``/tmp``. Variables that
    ``environment`` sets stay as they are. Ray reads these variables when it is imported.
    """
    found = {NO_OTHER_MACHINES: environment.get(NO_OTHER_MACHINES, "0")} | _short_files(environment)
    return found if MODE in environment else found | {MODE: "token", TOKEN: secrets.token_hex(32)}


def _short_files(environment: Mapping[str, str]) -> Variables:
    fits = FILES in environment or takes_sockets(environment.get("TMPDIR", SHORT))
    return {} if fits else {FILES: SHORT}


def takes_sockets(folder: str, longest: int = LONGEST_FOLDER) -> bool:
    """Whether Ray can keep its sockets and logs in a folder."""
    return len(os.fsencode(folder)) <= longest and " " not in folder


def patient(environment: Mapping[str, str]) -> Variables:
    """Variables of ``PATIENCE`` that the environment does not set: Ray starts slowly on a busy machine."""
    return {name: value for name, value in PATIENCE.items() if name not in environment}


def join_cluster(address: str, **arguments: Any) -> None:
    """Join a running Ray cluster at HOST:PORT, or "auto" for one of this machine; ``arguments``: further ones of ``ray.init``.

    Raises:
        ConnectionError: When the address is of another kind, or no cluster answers there.
    """
    host, _, port = address.rpartition(":")
    if address != "auto" and not (host and "/" not in host and port.isascii() and port.isdigit()):
        raise ConnectionError(f"is {address!r}, and no cluster answers there; {ADDRESSES}")
    for name, value in {**QUIET, "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0"}.items():
        os.environ.setdefault(name, value)
    try:
        if address != "auto":  # Ray would try for minutes
            socket.create_connection((host.strip("[]"), int(port)), CONNECT_SECONDS).close()
        import ray

        ray.init(address=address, **arguments)
    except Exception as error:  # Ray raises bare ones
        reason = ray_reason(str(error)) or type(error).__name__
        raise ConnectionError(f"is {address!r}, and no cluster answers there; {ADDRESSES}: {reason}") from error


def ray_reason(text: str) -> str:
    """The reason that Ray gives for a failed start, in one line, without lines of logs and tracebacks."""
    return " ".join(_LOGS.split(text)[0].split())


def spaced_path() -> str:
    """The path of this Python, of its packages or of fedveil where it has a space, else "": Ray 2.55 starts no worker there."""
    paths = (sys.executable, *site.getsitepackages(), str(Path(__file__).resolve()))
    return next((path for path in paths if " " in path), "")


def session_folder(folder: Path) -> Variables:
    """Variables under which Ray keeps sockets and logs in a folder; none where its path is too long for a socket, or has a space.

    By default they are in ``/tmp/ray``, which Ray makes writable for every user and never empties.
    """
    return {FILES: str(folder)} if takes_sockets(str(folder)) else {}


def keep_ray_here() -> None:
    """Bind the next Ray of this process to loopback; where Ray is not imported yet, require a token as well."""
    if "ray" not in sys.modules:
        os.environ.update(local_cluster(os.environ) | patient(os.environ))
        return
    os.environ.update(_short_files(os.environ))
    if NO_OTHER_MACHINES not in os.environ:
        # Private to Ray, and so set only where it is.
        constants: Any = import_module("ray._private.ray_constants")
        if hasattr(constants, "ENABLE_RAY_CLUSTER"):
            constants.ENABLE_RAY_CLUSTER = False


RETRIES = 40
"""Of a message to a worker whose node is lost: one a second or so fails until Ray has seen that, after 15 seconds or more."""
NEXT_TO_NOTHING = 0.001
"""Of a processor: Ray places an actor that needs nothing at all on a random node, whatever its strategy says."""

Nodes = Sequence[dict[str, Any]]
"""Nodes of a cluster, as ``ray.nodes()`` gives them."""


class NodeWorkers:
    """Stands in the place of Flower's class of workers; ``options(...).remote()`` starts one, on the next place that is free.

    Flower counts how many workers fit on each node and asks Ray for so many, each with processors of its own. After a node is lost,
    Ray has no free processors to start its workers elsewhere, and messages to them would wait for ever. Here every worker is placed
    on the node for which it was counted and reserves next to nothing of a processor, so that it starts anew on another node.
    ``workers`` is Ray's actor class; ``nodes`` are by default those that live when the first worker starts.
    """

    def __init__(self, workers: Any, nodes: Nodes | None = None) -> None:
        self._workers = workers
        self._nodes = nodes
        self._places: Iterator[str] | None = None

    def options(self, num_cpus: float, num_gpus: float = 0.0, **others: Any) -> Any:
        """The class with these options, placed on a node; ``num_cpus`` is the number of its threads, and is not reserved."""
        self._nodes = self._nodes or living_nodes()
        if self._places is None:
            self._places = iter(places(self._nodes, num_cpus, num_gpus))
        home, share = on_node(next(self._places, "")), reserved(num_gpus, self._nodes)
        if num_cpus > 1:  # of what is reserved Ray would make one thread
            others = {**others, "runtime_env": {"env_vars": {"OMP_NUM_THREADS": f"{num_cpus:.0f}"}}}
        return self._workers.options(
            num_cpus=NEXT_TO_NOTHING, num_gpus=share, scheduling_strategy=home, max_task_retries=RETRIES, **others
        )


def living_nodes() -> Nodes:
    """The living nodes of the cluster that this process has joined, as ``ray.nodes()`` gives them."""
    import ray

    found: Nodes = ray.nodes()  # type: ignore[no-untyped-call]
    return [node for node in found if node["Alive"]]


def on_node(node: str) -> Any:
    """Ray's strategy for an actor that starts on the node of this id, and on another one after that is lost; "" is any."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    return NodeAffinitySchedulingStrategy(node, soft=True) if node else "DEFAULT"


def reserved(num_gpus: float, nodes: Nodes) -> float:
    """Share of a card that Ray reserves for a worker, so that one living node has room for the workers of all nodes.

    On nodes with several cards Ray would put all workers with small shares on one of them: there the whole share is reserved.
    """
    if len(nodes) == 1 or any(node["Resources"].get("GPU", 0) > 1 for node in nodes):
        return num_gpus
    return math.floor(10_000 * num_gpus / len(nodes)) / 10_000  # Ray knows shares to four digits


def in_turn(nodes: Nodes, count: int, num_gpus: float) -> list[str]:
    """Ids of the nodes of ``count`` attack workers, in turn, of nodes that have what one needs."""
    what, least = ("GPU", num_gpus) if num_gpus else ("CPU", 1)
    able = [node["NodeID"] for node in nodes if node["Resources"].get(what, 0) >= least]
    return [able[at % len(able)] if able else "" for at in range(count)]


def places(nodes: Nodes, num_cpus: float, num_gpus: float = 0.0) -> list[str]:
    """Ids of the living nodes, each as often as workers fit on it, in turn: a few workers are on several nodes."""
    fitting = {}
    for node in nodes:
        counts = [
            node["Resources"].get(name, 0.0) / each for name, each in (("CPU", num_cpus), ("GPU", num_gpus)) if each
        ]
        fitting[node["NodeID"]] = int(min(counts, default=0))
    return [node for at in range(max(fitting.values(), default=0)) for node, count in fitting.items() if at < count]
