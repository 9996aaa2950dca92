"""The search space of ATS: up to three of the 50 transforms, in order; and the policies of equal effect."""

from __future__ import annotations

import functools
from collections.abc import Iterator

import torch

from defenses.images.ats import Policy
from defenses.images.transforms import LIBRARY, magnitude

LONGEST = 3
SIGNED = frozenset({"shearY", "translateX", "translateY", "color", "contrast", "sharpness", "brightness"})
"""Operations whose magnitude goes either way."""


def size_of_space(longest: int = LONGEST) -> int:
    """Sum over i up to ``longest`` of 50^i; 127,550 for three."""
    return sum(len(LIBRARY) ** length for length in range(1, longest + 1))


def policy_at(number: int, longest: int = LONGEST) -> Policy:
    """The policy of a number from 0 to ``size_of_space`` - 1: the 50 single ones first, then pairs, then triples.

    Raises:
        IndexError: For another number.
    """
    if not 0 <= number < size_of_space(longest):
        raise IndexError(f"policy {number} of {size_of_space(longest)}")
    base, length = len(LIBRARY), 1
    while number >= base**length:
        number -= base**length
        length += 1
    return tuple(number // base ** (length - 1 - place) % base for place in range(length))


@functools.cache
def effective(index: int, channels: int) -> int | None:
    """The first transform of the library with the same effect on images with so many channels; None without an effect.

    Levels mean nothing to some operations, a level may be without effect, and grey images have no colour.
    """
    name, level, _ = LIBRARY[index]
    size = magnitude(name, level)
    idle = {"color": size == 0 or channels == 1, "solarize": size > 255, "posterize": size == 8}
    if idle.get(name, name in SIGNED and size == 0):
        return None
    return next(at for at, other in enumerate(LIBRARY) if other.name == name and magnitude(name, other.level) == size)


def effect(policy: Policy, channels: int) -> Policy:
    """The effective transforms of a policy, by the first of each kind. Policies of the same effect are one candidate."""
    found = (effective(index, channels) for index in policy)
    return tuple(index for index in found if index is not None)


def sample(generator: torch.Generator, channels: int, longest: int = LONGEST) -> Iterator[Policy]:
    """Draw policies of the space uniformly, each effect on images of so many channels once, until none is left."""
    seen: set[Policy] = {()}
    for number in torch.randperm(size_of_space(longest), generator=generator).tolist():
        policy = policy_at(number, longest)
        what = effect(policy, channels)
        if what not in seen:
            seen.add(what)
            yield policy


def text_of(policies: tuple[Policy, ...]) -> str:
    """Text such as ``3-1-7+43-18-18``, which ``defenses.images.ats.parse_policies`` reads."""
    return "+".join("-".join(map(str, policy)) for policy in policies)


def disjoint(policies: list[Policy], count: int, channels: int) -> tuple[Policy, ...]:
    """The first ``count`` policies of a list, best first, that share nothing with an earlier one; fewer where there are none.

    What does the same counts as the same, whatever its index: of the library's 50 transforms nine equalize.
    """
    chosen: list[Policy] = []
    for policy in policies:
        if len(chosen) < count and not any(overlap(policy, other, channels) for other in chosen):
            chosen.append(policy)
    return tuple(chosen)


def overlap(one: Policy, other: Policy, channels: int) -> bool:
    """Whether two policies have a transform in common, by index or by effect."""
    return bool(set(one) & set(other) or set(effect(one, channels)) & set(effect(other, channels)))
