"""Ray on this machine, for this run alone; no Flower here.

Ray's processes unpickle, and so run, what they are sent. By default they listen on every address of the machine, without
authentication. A simulation needs neither: its processes are on one machine, and know each other.
"""

import os
import re
import secrets
import site
import sys
from collections.abc import Mapping
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
LONGEST_FOLDER = 35
"""Bytes: what Ray appends (68) must leave a socket's path below the 103 bytes that every Unix allows."""
SHORT = "/tmp"
"""For temporary files where ``TMPDIR`` is too long for Ray's sockets, as on clusters that name it after the job, or has a space."""


def local_cluster(environment: Mapping[str, str]) -> Variables:
    """Variables that make Ray bind to loopback and obey only processes with a token of 256 bits.

    Where ``TMPDIR`` takes no sockets (its path is too long, or has a space), Ray makes them in ``/tmp``. Variables that
    ``environment`` sets stay as they are. Ray reads these variables when it is imported.
    """
    variables = {NO_OTHER_MACHINES: environment.get(NO_OTHER_MACHINES, "0")} | _short_files(environment)
    return variables if MODE in environment else variables | {MODE: "token", TOKEN: secrets.token_hex(32)}


def _short_files(environment: Mapping[str, str]) -> Variables:
    return {} if FILES in environment or takes_sockets(environment.get("TMPDIR", SHORT)) else {FILES: SHORT}


def takes_sockets(folder: str, longest: int = LONGEST_FOLDER) -> bool:
    """Whether Ray can keep its sockets and logs in a folder."""
    return len(os.fsencode(folder)) <= longest and " " not in folder


def patient(environment: Mapping[str, str]) -> Variables:
    """Variables of ``PATIENCE`` that the environment does not set: Ray starts slowly on a busy machine."""
    return {name: value for name, value in PATIENCE.items() if name not in environment}


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
