"""Flower's command ``flwr``, with more patience for the local SuperLink that it starts.

Flower 1.41 gives a SuperLink 15 seconds to start, and 0.4 seconds to answer that it is there; no setting changes either. A busy
machine needs longer: the start fails, or Flower starts a second SuperLink on a port that is taken.
``simulations.runtime.launch`` runs this file by its place.
"""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PATIENCE = {"LOCAL_SUPERLINK_STARTUP_TIMEOUT": 90.0, "CONTROL_API_PROBE_TIMEOUT": 10.0}
"""Constant of ``local_superlink`` -> seconds. Flower sees at once that a SuperLink ended, however long this is."""


def main() -> None:
    """Runs Flower's command with the arguments of this process."""
    sys.path.insert(0, str(ROOT))  # a package `clients` elsewhere on the path must not take the place of this one
    from clients.flower_private import flower_command, local_superlink

    del sys.path[0]
    # Flower looks at the modules of the app that it sends off, which may be another copy of fedveil.
    for name in [module for module in sys.modules if module.partition(".")[0] == "clients"]:
        del sys.modules[name]
    starter = local_superlink()
    for name, seconds in PATIENCE.items():
        if hasattr(starter, name):  # where it is gone, Flower's own patience holds
            setattr(starter, name, seconds)
    sys.argv[0] = "flwr"
    flower_command()()


if __name__ == "__main__":
    main()
