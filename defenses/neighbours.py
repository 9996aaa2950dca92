"""Between which data sets a bound of differential privacy holds: its neighbours.

An epsilon means nothing without them. They also say what may be public: a bound for one example more or less is void as soon as
anything that is sent follows from the number of examples, such as the divisor of a mean or the weight of an average.
"""

from collections.abc import Mapping
from types import MappingProxyType

ADD_OR_REMOVE, REPLACE_ONE = "add-or-remove", "replace-one"
REPLACE_CLIENT = "replace-client"

SENSITIVITY: Mapping[str, int] = MappingProxyType({ADD_OR_REMOVE: 1, REPLACE_ONE: 2, REPLACE_CLIENT: 2})
"""Neighbours -> how far they can move a sum of vectors that are clipped to a norm of 1."""

MEANING: Mapping[str, str] = MappingProxyType({
    ADD_OR_REMOVE: "one example added or removed; the number of examples is hidden",
    REPLACE_ONE: "one example replaced by any other; the number of examples is public",
    REPLACE_CLIENT: "one client's whole training set replaced by any other of as many examples; their number is public",
})  # fmt: skip
"""Neighbours -> in words, for readers of an epsilon."""

BUDGET = "budget-"
"""Begins the names of what an epsilon follows from. Where noise changes, its multiplier is that of the first step."""

EXAMPLE_LEVEL, CLIENT_LEVEL = "example-level", "client-level"
"""What an epsilon protects: one example of a client, or all training examples of a client together."""


def level_of(neighbours: str) -> str:
    """``EXAMPLE_LEVEL`` or ``CLIENT_LEVEL``; "" without neighbours or with unknown ones."""
    if neighbours not in MEANING:
        return ""
    return CLIENT_LEVEL if neighbours == REPLACE_CLIENT else EXAMPLE_LEVEL
