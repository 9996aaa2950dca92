"""Data with two attributes of each example: the class of the task, and a sensitive attribute that should stay private.

Examples are balanced over the four combinations of two binary attributes, so that the attributes are independent.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from clients.data.images import DataError, Labels, ranks_in_class

Rows = NDArray[np.intp]

COMBINATIONS = tuple(itertools.product((0, 1), (0, 1)))
"""(primary, sensitive)."""


def binary_attribute(name: str, text: str, titles: Sequence[str]) -> tuple[Labels, tuple[str, str]]:
    """Read an attribute that two groups of classes make: ``06-24`` is 0 for the classes 0 and 6, and 1 for 2 and 4.

    ``name`` of the data set is for messages; an empty title marks a class that must not be used. Returns class -> 0, 1, or -1 for a
    class that is in neither group, (len(titles),), and the names of both groups.
    """
    groups = text.split("-")
    digits = "".join(groups)
    allowed = {str(number): title for number, title in enumerate(titles) if title}
    if len(groups) != 2 or not all(groups) or len(set(digits)) != len(digits) or not set(digits) <= set(allowed):
        known = ", ".join(f"{digit} {title}" for digit, title in allowed.items())
        raise DataError(
            f"{name}: {text!r} is no attribute; expected two groups of different classes such as "
            f"{''.join(list(allowed)[:2])}-{''.join(list(allowed)[2:4])}, from: {known}"
        )
    values = np.full(len(titles), -1, dtype=np.int64)
    for value, group in enumerate(groups):
        values[[int(digit) for digit in group]] = value
    first, second = (" or ".join(titles[int(digit)] for digit in sorted(group)) for group in groups)
    return values, (first, second)


def balanced(name: str, primary: Labels, sensitive: Labels) -> Rows:
    """Rows, sorted, with equally many of each pair of binary attributes (N,); ``DataError`` where a pair is missing."""
    joint = 2 * primary + sensitive
    counts = np.bincount(joint, minlength=4)
    if counts.min() == 0:
        found = ", ".join(f"{pair}: {count}" for pair, count in zip(COMBINATIONS, counts, strict=True))
        raise DataError(f"{name}: every combination of (primary, sensitive) must occur; there are {found}")
    return np.flatnonzero(ranks_in_class(joint)[0] < counts.min())


def paired(name: str, primary: Labels, sensitive: Labels, generator: np.random.Generator) -> tuple[Rows, Rows]:
    """Pair examples of two sources so that all four combinations are equally frequent, using no example twice.

    Args:
        name: What the pairs are, for messages.
        primary: The attribute of the first source's examples, (N,): 0, 1, or -1 for those that are left out.
        sensitive: Likewise of the second source's, (M,).
        generator: Draws which examples meet.

    Returns:
        Rows of the first and of the second source, as many as both allow; combinations take turns in the order of
            ``COMBINATIONS``, so that every beginning is balanced too. A value with fewer than two examples is a ``DataError``.
    """
    pools = [[generator.permutation(np.flatnonzero(values == v)) for v in (0, 1)] for values in (primary, sensitive)]
    # Each value is in two combinations.
    each = min(len(pool) for source in pools for pool in source) // 2
    if each == 0:
        sizes = [len(pool) for source in pools for pool in source]
        raise DataError(f"{name}: both values of both attributes need two examples at least; there are {sizes}")
    first = np.stack([pools[0][p][s * each : (s + 1) * each] for p, s in COMBINATIONS], 1)
    second = np.stack([pools[1][s][p * each : (p + 1) * each] for p, s in COMBINATIONS], 1)
    return first.ravel(), second.ravel()
