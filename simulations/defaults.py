"""Defaults that settings and the command line name; a module of its own, so that ``fedveil --help`` need not import torch."""

from __future__ import annotations

FEDERATED = "federated"
"""The scenario of experiments that name none."""
AUTO = "auto"
"""Value of ``attribute-attacks`` where the experiment leaves the choice to the kind of observation."""
DEFAULT_CLIENTS = 4
"""Simulated clients of ``fedveil run``."""
DEFAULT_ATTACKS = "InvertingGradients(); LabelInference()"
"""Of ``fedveil attack``."""
