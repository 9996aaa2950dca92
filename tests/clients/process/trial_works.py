"""Works of the tests of ``clients.process.trial_process``: what a child process does in place of fedveil's own functions."""

import _socket
import subprocess
import sys
from contextlib import suppress
from typing import Any

from clients.process.own_code import own_code


def call(name: str) -> Any:
    return own_code(name)()


def arguments() -> list[str]:
    return sys.argv


def refuse(text: str) -> None:
    raise ValueError(text)


CONNECT = "import socket, sys; socket.create_connection(('127.0.0.1', int(sys.argv[1])), 5)"


def reach(port: int, isolated: bool) -> dict[str, Any]:
    """Whether this process and a child of it reach a port of this machine, below Python's ``socket``."""
    own, reached = _socket.socket(), False
    with suppress(OSError):
        own.connect(("127.0.0.1", port))
        reached = True
    child = subprocess.run([sys.executable, "-c", CONNECT, str(port)], stderr=subprocess.DEVNULL, check=False)
    return {"isolated": isolated, "reached": [reached, child.returncode == 0]}
