"""What an attack knows, read from its text: for threat cards that do not say it."""

from __future__ import annotations

import functools

from attacks.observations import AttackError
from attacks.spec import parse_attacks
from defenses.spec import SpecError


@functools.lru_cache(maxsize=256)
def knows_defenses(attack: str) -> bool:
    """Whether an attack of this text goes by the clients' defences; one that cannot be read is taken at its name, and does."""
    try:
        (found,) = parse_attacks(attack)
    except (SpecError, AttackError, ValueError):
        return True
    return found.knows_defenses
