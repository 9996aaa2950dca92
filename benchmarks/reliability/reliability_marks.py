"""What a round has cost when it ends, by the server's process; also in copies of an app that Flower's runtime runs."""

from __future__ import annotations

import contextlib
import json
import os
import time
from pathlib import Path

import psutil

FILE = "FEDVEIL_MARKS"
"""Variable of the file to which marks go."""


def measured() -> dict[str, float]:
    """Wall seconds, processor seconds of this process and all beneath it, and MiB of this one and of client workers."""
    me, found, workers = psutil.Process(), 0.0, 0.0
    for process in (me, *me.children(recursive=True)):
        with contextlib.suppress(psutil.Error):
            used = process.cpu_times()
            found += used.user + used.system
            if process.pid != me.pid and process.name().startswith("ray::ClientApp"):
                workers += process.memory_info().rss
    return {"at": time.monotonic(), "cpu": found, "mib": me.memory_info().rss / 2**20, "workers": workers / 2**20}


def mark() -> None:
    """A round has ended: in the simulation of Flower's runtime, where the server is a thread of Ray's driver."""
    with Path(os.environ[FILE]).open("a") as file:
        file.write(json.dumps(measured()) + "\n")
