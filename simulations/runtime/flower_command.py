"""Flower's command ``flwr``, with more patience for the local SuperLink that it starts.

Flower 1.41 gives a SuperLink 15 seconds to start, and 0.4 seconds to answer that it is there; no setting changes either. A busy
machine needs longer: the start fails, or Flower starts a second SuperLink on a port that is taken. This file imports nothing of
ours, as ``simulations.runtime.launch`` runs it by its place.
"""

from __future__ import annotations

import sys

PATIENCE = {"LOCAL_SUPERLINK_STARTUP_TIMEOUT": 90.0, "CONTROL_API_PROBE_TIMEOUT": 10.0}
"""Constant of ``flwr.cli.local_superlink`` -> seconds. Flower sees at once that a SuperLink ended, however long this is."""


def main() -> None:
    """Runs Flower's command with the arguments of this process."""
    from flwr.cli import local_superlink
    from flwr.cli.app import app

    for name, seconds in PATIENCE.items():
        if hasattr(local_superlink, name):  # private to Flower: where it is gone, Flower's own patience holds
            setattr(local_superlink, name, seconds)
    sys.argv[0] = "flwr"
    app()


if __name__ == "__main__":
    main()
