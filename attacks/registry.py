"""Which attacks a configuration text may name."""

from __future__ import annotations

from attacks.base import Attack
from defenses.registry import Registry

ATTACKS = Registry(Attack, "fedveil.attacks")
"""Attacks that settings such as ``probe-attacks``, ``update-attacks`` and ``smashed-attacks`` may name."""
