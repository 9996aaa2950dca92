"""Range checks for hyper-parameters, so that every defence and attack refuses bad values in the same words."""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, fields
from functools import partial
from typing import Any, TypeVar, dataclass_transform

T = TypeVar("T")

LONGEST = 200
"""Characters of a value in an error."""
SMALLEST, LARGEST = 1e-12, 1e12
"""Of rates, weights and scales. float32 holds 7 digits: beyond these factors one term of a sum is lost beside the other, and such a
setting does nothing, or nothing else. Two of them multiplied stay far from the ends of float32, 1e-38 and 1e38."""
LARGEST_NOISE = 1e6
"""Of standard deviations: far beyond what leaves anything of a gradient, an image or a feature, and far below float32's largest."""
LEAST_MULTIPLIER = 1e-4
"""Of a noise that a privacy budget is computed for: below it one step spends an epsilon of more than 5e7, and the largest budget
that is allowed is 1e6."""
MOST_STEPS = 10**9
"""Iterations, epochs or tries of one training or search: eleven days at a thousandth of a second each."""
MOST_EXAMPLES = 2**20
"""Of one batch, one mean, or one training set that an attack makes: sixteen times the largest published batches (65,536)."""
MOST_CLASSES = 2**24
"""Of one data set, as a data card has it."""
MOST_STARTS = 10_000
"""Restarts, trials or models of one attack: the published inversions make up to 16."""
MOST_WIDTH = 65_536
"""Channels or values of one layer: five times those of the widest published transformers (12,288)."""
MOST_DEPTH = 1000
"""Blocks of a network, or attention heads of a block: ten times those of the deepest published transformers (96)."""
MOST_SIDE = 4096
"""Pixels along a side of an image or a window, as the setting image-size has it."""
CHECK = "check"
"""Key of a field's metadata: what refuses a wrong value, (owner, name of the field) -> None; see ``check_fields``."""


def require(condition: bool, owner: Any, name: str, allowed: str) -> None:
    """Raises ``ValueError`` naming the field, its value and what is allowed, unless ``condition`` holds."""
    if not condition:
        raise ValueError(f"{name} is {shown(getattr(owner, name))}; allowed: {allowed}")


def shown(value: Any) -> str:
    """A value in an error; what would fill a screen is cut."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # a number of more digits than Python writes, or tuples in tuples
        return f"{type(value).__name__} that is too large to show"
    return cut(text, LONGEST)


def cut(text: str, most: int) -> str:
    """The text, or its first ``most`` characters and its length."""
    return text if len(text) <= most else f"{text[:most]}... ({len(text)} characters)"


def require_scale(
    owner: Any, name: str, *, zero: bool = False, least: float = SMALLEST, most: float = LARGEST, infinite: bool = False
) -> None:
    """Raises ``ValueError`` unless the field is a number of a size that acts in float32 (``SMALLEST``).

    Args:
        owner: Has the field.
        name: The field's name: a rate, a weight of a loss, a norm or a standard deviation.
        zero: 0 is allowed, too: the term is left out.
        least: The smallest above 0.
        most: The largest.
        infinite: Infinity is allowed, too: there is no bound.
    """
    value = getattr(owner, name)
    fits = is_number(value) and (least <= value <= most or (zero and value == 0) or (infinite and value == math.inf))
    allowed = f"{'0, or ' if zero else ''}a number from {least:g} to {most:g}{', or inf' if infinite else ''}"
    require(fits, owner, name, allowed)


def check_fields(owner: Any) -> None:
    """Raises ``ValueError`` on the first value of a dataclass that its field's check refuses.

    Bases of defences and attacks call it in ``__post_init__``. A subclass that gives a field another default keeps the check.
    """
    for spec in fields(owner):
        own = (vars(kind).get("__dataclass_fields__", {}).get(spec.name) for kind in type(owner).__mro__)
        check = next((declared.metadata[CHECK] for declared in own if declared and CHECK in declared.metadata), None)
        if check is not None:
            check(owner, spec.name)


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def algorithm(kind: type[T]) -> type[T]:
    """Make the class of a defence or an attack a frozen dataclass whose ``repr`` stays its base's: the configuration text."""
    return dataclass(frozen=True, repr=False)(kind)


def checked_field(default: T, fits: Callable[[Any], bool], allowed: str) -> T:
    """A field with its own check: ``fits`` decides whether a value is allowed, and errors show the text ``allowed``."""
    check = lambda owner, name: require(fits(getattr(owner, name)), owner, name, allowed)  # noqa: E731
    return field(default=default, metadata={CHECK: check})


def whole_field(default: int, least: int, most: int, but: str = "") -> int:
    """A field of whole numbers between two others, both included; ``but`` adds to the message."""
    allowed = f"a whole number from {least} to {most}{but}"
    return checked_field(default, lambda value: is_whole(value) and least <= value <= most, allowed)


def steps_field(default: int, least: int = 1) -> int:
    """A field of iterations, epochs or tries."""
    return whole_field(default, least, MOST_STEPS)


def starts_field(default: int, least: int = 1) -> int:
    """A field of restarts, trials or models."""
    return whole_field(default, least, MOST_STARTS)


def examples_field(default: int, least: int = 1) -> int:
    """A field of numbers of examples."""
    return whole_field(default, least, MOST_EXAMPLES)


def width_field(default: int, least: int = 1) -> int:
    """A field of channels or values of one layer."""
    return whole_field(default, least, MOST_WIDTH)


def scale_field(default: float, **bounds: Any) -> float:
    """A field of rates, weights, norms or standard deviations; ``bounds`` as for ``require_scale``."""
    return field(default=default, metadata={CHECK: partial(require_scale, **bounds)})


def noise_field(default: float, least: float = SMALLEST) -> float:
    """A field of scales of noise that floats can hold, 0 included: no noise."""
    return scale_field(default, zero=True, least=least, most=LARGEST_NOISE)


def share_field(default: float) -> float:
    """A field of shares of something, none and all included."""
    return checked_field(default, lambda value: is_number(value) and 0 <= value <= 1, "a number from 0 to 1")


def probability_field(default: float) -> float:
    """A field of probabilities that are neither 0 nor 1, such as delta."""
    return checked_field(default, lambda value: is_number(value) and 0 < value < 1, "a number in (0, 1)")


def flag_field(default: bool) -> bool:
    """A field that is True or False."""
    return checked_field(default, lambda value: isinstance(value, bool), "True or False")


def choice_field(default: str, allowed: Iterable[str]) -> str:
    """A field of one of several texts."""
    known = tuple(allowed)
    return checked_field(default, lambda value: isinstance(value, str) and value in known, " | ".join(known))


def per_field(default: str) -> str:
    """What a defence of gradients and updates acts on; see ``defenses.base.UpdateDefense``."""
    return choice_field(default, ("step", "update"))


def is_whole(value: Any) -> bool:
    """Whether ``value`` is an integer (bool is not)."""
    return isinstance(value, int) and not isinstance(value, bool)


def is_number(value: Any) -> bool:
    """Whether ``value`` is a number other than NaN that fits a float (bool is not)."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return False
    try:
        return not math.isnan(value)
    except OverflowError:  # an integer of more than 308 digits
        return False
