"""Adversaries of a sensitive attribute: what they learned from."""

from __future__ import annotations

from attacks.observations import AttackError
from attacks.spec import parse_attacks
from defenses.spec import SpecError

STATIC_KIND, RETRAINED_KIND = "static", "retrained"


def kind(attack: str) -> str:
    """``STATIC_KIND`` or ``RETRAINED_KIND`` of the text of an attack on a sensitive attribute; "" of other attacks."""
    try:
        (found,) = parse_attacks(attack)
    except (SpecError, AttackError, ValueError):
        return ""
    if not found.infers_attributes:
        return ""
    return RETRAINED_KIND if found.knows_defenses else STATIC_KIND
