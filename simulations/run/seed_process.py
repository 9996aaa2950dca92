"""A run of ``side_by_side`` in its own process: it reads its order from the input, and ends when the input does."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time

from simulations.console.terminal import Terminal
from simulations.experiment.experiment import Experiment
from simulations.run.in_process import run_in_process
from simulations.runtime.launch import Resources
from simulations.runtime.local_run import run_locally

SECONDS_TO_END = 50
"""Seconds from the signal to stop until the process ends in any case."""


def main() -> int:
    """Carry out the order in the first line of the input; return the exit code."""
    order = json.loads(sys.stdin.readline())
    signal.signal(signal.SIGINT, signal.default_int_handler)
    threading.Thread(target=_stop_with_input, daemon=True).start()
    one, resources = Experiment.from_mapping(order["settings"]), Resources(**order["resources"])
    console = Terminal(highlight=False)
    if order["in_process"]:
        return run_in_process(console, one, resources.cpus_per_client)
    return run_locally(console, one, resources)


def _stop_with_input() -> None:
    sys.stdin.read()
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(SECONDS_TO_END)
    os._exit(130)


if __name__ == "__main__":
    sys.exit(main())
