"""The search space of ATS: up to three of the 50 transforms, in order; and the policies of equal effect."""

import functools
import itertools
from collections.abc import Iterator, Sequence

import torch

from defenses.images.ats import Policy
from defenses.images.transforms import LIBRARY, magnitude

LONGEST = 3
SIZE = sum(len(LIBRARY) ** length for length in range(1, LONGEST + 1))
"""Policies of the space: 127,550."""
SIGNED = frozenset({"shearY", "translateX", "translateY", "color", "contrast", "sharpness", "brightness"})
"""Operations whose magnitude goes either way."""


@functools.cache
def space() -> tuple[Policy, ...]:
    """All policies: the 50 single transforms first, then pairs, then triples."""
    lengths = range(1, LONGEST + 1)
    return tuple(itertools.chain(*(itertools.product(range(len(LIBRARY)), repeat=length) for length in lengths)))


@functools.cache
def effective(index: int, channels: int) -> int | None:
    """The first transform of the library with the same effect on images with so many channels; None without an effect.

    Levels mean nothing to some operations, a level may be without effect, and grey images have no colour.
    """
    name, level = LIBRARY[index]
    size = magnitude(name, level)
    idle = {"color": size == 0 or channels == 1, "solarize": size > 255, "posterize": size == 8}
    if idle.get(name, name in SIGNED and size == 0):
        return None
    return next(at for at, other in enumerate(LIBRARY) if other.name == name and magnitude(name, other.level) == size)


def effect(policy: Policy, channels: int) -> Policy:
    """The effective transforms of a policy, by the first of each kind. Policies of the same effect are one candidate."""
    indices = (effective(index, channels) for index in policy)
    return tuple(index for index in indices if index is not None)


def sample(generator: torch.Generator, channels: int) -> Iterator[Policy]:
    """Draw policies of the space uniformly, each effect on images of so many channels once, until none is left."""
    seen: set[Policy] = {()}
    for number in torch.randperm(SIZE, generator=generator).tolist():
        policy = space()[number]
        what = effect(policy, channels)
        if what not in seen:
            seen.add(what)
            yield policy


def text_of(policies: Sequence[Policy]) -> str:
    """Text such as ``3-1-7+43-18-18``, which ``defenses.images.ats.parse_policies`` reads."""
    return "+".join("-".join(map(str, policy)) for policy in policies)


def disjoint(policies: Sequence[Policy], count: int, channels: int) -> tuple[Policy, ...]:
    """The first ``count`` policies of a list, best first, that share nothing with an earlier one; fewer where there are none.

    What does the same counts as the same, whatever its index: of the library's 50 transforms nine equalize.
    """
    chosen, used = list[Policy](), set[int]()
    for policy in policies:
        own = {*policy, *effect(policy, channels)}
        if len(chosen) < count and not own & used:
            chosen.append(policy)
            used |= own
    return tuple(chosen)


def random_hybrid(generator: torch.Generator, channels: int, lengths: Sequence[int]) -> tuple[Policy, ...]:
    """Draw policies of these lengths that share nothing; fewer where none is left."""
    hybrid: tuple[Policy, ...] = ()
    for policy in sample(generator, channels):
        if len(hybrid) == len(lengths):
            break
        if len(policy) == lengths[len(hybrid)]:
            hybrid = disjoint([*hybrid, policy], len(lengths), channels)
    return hybrid
