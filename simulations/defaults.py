"""Defaults that the command line shows; a module of its own, so that ``fedveil --help`` need not import torch."""

from __future__ import annotations

DEFAULT_CLIENTS = 4
"""Simulated clients of ``fedveil run``."""
DEFAULT_ATTACKS = "InvertingGradients(); LabelInference()"
"""Of ``fedveil attack``."""
