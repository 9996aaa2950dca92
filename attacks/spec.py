"""The configuration language of attacks, ``DLG(iterations=100) | LearnedRestorer()``, and the attacks that it may name."""

from attacks.base import AnyAttack, Attack
from attacks.observations import AttackError
from attacks.refinement.base import Chain, Refinement
from defenses.registry import Registry
from defenses.spec import parse_statements

ATTACKS = Registry(Attack, "fedveil.attacks", "attacks")
"""Attacks that settings such as ``probe-attacks``, ``update-attacks`` and ``smashed-attacks`` may name."""


def parse_attacks(text: str, start: str = "InvertingGradients()") -> list[AnyAttack]:
    """Reads attacks, separated by ``;``; what stands behind ``|`` refines what the attack before it found.

    ``start`` is how a chain may begin, for the error that names a single refinement.

    Raises:
        SpecError: Naming what is unknown or not allowed.
        AttackError: When a chain cannot be one.
    """
    statements = parse_statements(text, ATTACKS, "attack")
    lone = [stages[0] for stages in statements if len(stages) == 1 and isinstance(stages[0], Refinement)]
    if lone:
        raise AttackError(f"{lone[0]} refines the guess of another attack; write {start} | {lone[0]}")
    return [stages[0] if len(stages) == 1 else Chain(tuple(stages)) for stages in statements]


def stages_of(attack: AnyAttack) -> tuple[AnyAttack, ...]:
    """The attacks of a chain in order, or the attack alone."""
    return attack.stages if isinstance(attack, Chain) else (attack,)
