"""Defaults that settings and the command line name; a module of its own, so that ``fedveil --help`` need not import torch."""

FEDERATED = "federated"
"""Scenario of configurations that name none."""
AUTO = "auto"
"""Value that leaves the choice to the scenario (``Scenario.usual``); of attacks, to what is observed."""
SCENARIOS_GROUP = "fedveil.scenarios"
"""Group of entry points by which other packages offer scenarios."""
DEFAULT_AUDIT = {"probe-targets": 12, "probe-images": "1, 4, 16", "attack-rounds": "first"}
"""What `fedveil run` without a configuration sets besides, on its own data alone: other clients may hold too few images."""
DEFAULT_CLIENTS = 4
"""Number of simulated clients of ``fedveil run``."""
