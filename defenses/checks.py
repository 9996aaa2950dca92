"""Types of numbers and texts with their ranges, declared once for settings, plans, defences and attacks, and the check of fields.

Pydantic checks settings, and plans, because a server may send anything; ``check_fields`` checks defences and attacks. Nothing here
imports torch.
"""

import functools
import inspect
import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sized
from dataclasses import dataclass, field, fields
from types import MappingProxyType, NoneType, UnionType
from typing import Annotated, Any, Literal, NamedTuple, TypeVar, Union, dataclass_transform, get_args, get_origin

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
MOST_ROUNDS = 10**6
"""Eleven days at a second each."""
MOST_STARTS = 10_000
"""Restarts, trials or models of one attack: the published inversions make up to 16."""
MOST_SIDE = 4096
"""Pixels along a side of an image or a window: a 16-megapixel photograph, 200 MB as floats."""
MOST_EXAMPLES = 2**20
"""Of one batch, one mean, or one training set that an attack makes, or batches in a message: sixteen times the largest published
batches (65,536)."""
MOST_CLASSES = 2**24
"""Of one data set, as a data card has it."""
MOST_CANARIES = 65_536
"""Of one client: its training holds a gradient of the whole model for each of those in a batch."""
MOST_WIDTH = 65_536
"""Channels or values of one layer: five times those of the widest published transformers (12,288)."""
MOST_DEPTH = 1000
"""Blocks of a network, or attention heads of a block: ten times those of the deepest published transformers (96)."""
MOST_COUNTED = 2**63 - 1
"""What TOML, Flower and torch hold of a whole number: for counts of which more than there is means all."""
LEAST_RATE, MOST_RATE = 1e-12, 1e6
"""Of learning: float32 holds 7 digits, so that a smaller step changes no weight, and a larger one leaves nothing of it."""
MOST_TEXT = 4096
"""Characters of a name, a path or a list in words: the longest path of a file."""


class Allowed(ABC):
    """What a value may be besides its type, as metadata of ``Annotated``."""

    @abstractmethod
    def allows(self, value: Any) -> bool:
        """Whether a value of the type is allowed."""

    @abstractmethod
    def words(self, kind: Any) -> str:
        """Describe the allowed values of a type, for errors and the help."""

    def require(self, value: Any, kind: Any) -> Any:
        """Return the value; ``ValueError`` unless it is allowed."""
        if not self.allows(value):
            raise ValueError(self.words(kind))
        return value

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        from pydantic_core import core_schema  # defences and attacks do without

        return core_schema.no_info_after_validator_function(
            functools.partial(self.require, kind=source), handler(source)
        )


@dataclass(frozen=True)
class Limit(Allowed):
    """A range.

    Attributes:
        least: The smallest number, included unless ``above``.
        most: The largest, included unless ``below``.
        above: The smallest is excluded.
        below: The largest is excluded.
        also: A number that is allowed besides; None for no other.
        word: The other number's name in words, if it has one.
    """

    least: float
    most: float = MOST_COUNTED
    above: bool = False
    below: bool = False
    also: float | None = None
    word: str = ""

    def allows(self, value: float) -> bool:
        """Whether a number is within."""
        inside = self.least <= value <= self.most
        excluded = (self.above and value == self.least) or (self.below and value == self.most)
        return (inside and not excluded) or value == self.also

    def words(self, kind: Any) -> str:
        """Such as "0, or a whole number from 2 to 4096", or "a number above 0 and at most 1"."""
        least, most = _number(self.least), _number(self.most)
        span = f"from {least} to {most}"
        if self.above or self.below:
            start, end = ("above" if self.above else "of at least"), ("below" if self.below else "at most")
            span = f"{start} {least} and {end} {most}"
        also = "" if self.also is None else f"{self.word or _number(self.also)}, or "
        return f"{also}{KINDS[int if kind is int else float]} {span}"


def _number(number: float) -> str:
    return str(number) if isinstance(number, int) else f"{number:g}"


KINDS = {int: "a whole number", float: "a number", bool: "True or False", str: "a text"}
"""Types of single values, and what errors call them."""


def words_of(kind: Any, metadata: Iterable[Any]) -> str:
    """Describe what a value may be besides its type, by the type and the metadata of its annotation; "" for anything."""
    if get_origin(kind) is Literal:
        return " or ".join(map(repr, get_args(kind)))
    return ", ".join(entry.words(kind) for entry in metadata if isinstance(entry, Allowed))


@dataclass(frozen=True)
class OneLine(Allowed):
    """A text of one line with at most so many characters."""

    most: int

    def allows(self, value: str) -> bool:
        """Whether a text is no longer, and prints as it is."""
        return len(value) <= self.most and value.isprintable()

    def words(self, kind: Any) -> str:
        """See ``Allowed``."""
        return f"one line of at most {self.most} characters"


@dataclass(frozen=True)
class Length(Allowed):
    """The most characters of a text, or entries of a list."""

    most: int

    def allows(self, value: Sized) -> bool:
        """Whether it is no longer."""
        return len(value) <= self.most

    def words(self, kind: Any) -> str:
        """See ``Allowed``."""
        return f"at most {self.most}"


Text = Annotated[str, Length(MOST_TEXT)]
Norm = Literal["group", "batch"]
ProbeMode = Literal["train", "eval"]
Optimizer = Literal["sgd", "adamw"]
Architecture = Literal["split", "tuned", "full"]
"""Of an adversary; see ``attacks.queries.attributes``."""
Per = Literal["step", "update"]
"""What a defence of gradients and updates acts on; see ``defenses.base.UpdateDefense``."""
Count = Annotated[int, Limit(0)]
"""Of what there is: more means all. Or a number that only names a stream, such as a seed."""
SIDE = Limit(2, MOST_SIDE, also=0)
Side = Annotated[int, SIDE]
"""Of images, 0 for no scaling. Images of one pixel are refused: shuffles, crops and scores need more."""
Pixels = Annotated[int, Limit(1, MOST_SIDE)]
Padding = Annotated[int, Limit(0, MOST_SIDE)]
Width = Annotated[int, Limit(1, MOST_WIDTH)]
"""Channels or values of one layer."""
WidthOrNone = Annotated[int, Limit(0, MOST_WIDTH)]
"""0 for the model's own."""
Blocks = Annotated[int, Limit(1, MOST_DEPTH)]
"""Or attention heads of one."""
BlocksOrNone = Annotated[int, Limit(0, MOST_DEPTH)]
Rounds = Annotated[int, Limit(1, MOST_ROUNDS)]
"""Or passes."""
Steps = Annotated[int, Limit(1, MOST_STEPS)]
"""Iterations, epochs or tries."""
StepsOrNone = Annotated[int, Limit(0, MOST_STEPS)]
Starts = Annotated[int, Limit(1, MOST_STARTS)]
"""Restarts, trials or models."""
Examples = Annotated[int, Limit(1, MOST_EXAMPLES)]
"""Of a batch; or batches."""
Several = Annotated[int, Limit(2, MOST_EXAMPLES)]
"""Examples where one alone is too few: batch normalisation cannot train on it."""
Canaries = Annotated[int, Limit(0, MOST_CANARIES)]
Rate = Annotated[float, Limit(LEAST_RATE, MOST_RATE)]
"""Of learning."""
Decay = Annotated[float, Limit(0, MOST_RATE)]
Scale = Annotated[float, Limit(SMALLEST, LARGEST)]
"""A rate, a weight of a loss, a norm or a standard deviation: a number of a size that acts in float32."""
ScaleOrNone = Annotated[float, Limit(SMALLEST, LARGEST, also=0)]
"""0: the term is left out."""
Bound = Annotated[float, Limit(SMALLEST, LARGEST, also=math.inf)]
"""Infinity: there is no bound."""
Noise = Annotated[float, Limit(SMALLEST, LARGEST_NOISE, also=0)]
"""Scale of a noise, 0 for no noise."""
Multiplier = Annotated[float, Limit(LEAST_MULTIPLIER, LARGEST_NOISE, also=0)]
"""Of a noise that a privacy budget is computed for."""
Share = Annotated[float, Limit(0, 1, above=True)]
ShareOrNone = Annotated[float, Limit(0, 1)]
BelowOne = Annotated[float, Limit(0, 1, below=True)]
Probability = Annotated[float, Limit(0, 1, above=True, below=True)]
"""Neither 0 nor 1, such as delta."""
Gibibytes = Annotated[float, Limit(1e-9, 1e6)]
"""From one byte."""


class Declared(NamedTuple):
    """What an annotation says of a field's values.

    Attributes:
        kind: A type in ``KINDS``, a ``Literal``, or another type of values with a range.
        ranges: What a value of the type must be besides.
        optional: None is allowed, too.
    """

    kind: Any
    ranges: tuple[Allowed, ...]
    optional: bool

    @classmethod
    def read(cls, annotation: Any) -> "Declared | None":
        """Read an annotation; None for one that says nothing that is checked, such as a tensor's."""
        parts = [part for part in get_args(annotation) if part is not NoneType]
        if optional := get_origin(annotation) in (Union, UnionType) and len(parts) == 1:
            annotation = parts[0]
        kind, *metadata = get_args(annotation) if get_origin(annotation) is Annotated else (annotation,)
        kind = object if kind is Any else kind
        ranges = tuple(entry for entry in metadata if isinstance(entry, Allowed))
        return cls(kind, ranges, optional) if ranges or get_origin(kind) is Literal or kind in KINDS else None

    def allows(self, value: Any) -> bool:
        """Whether a value has the type, and is in the ranges."""
        if self.optional and value is None:
            return True
        if get_origin(self.kind) is Literal:
            plain = not isinstance(value, bool)  # True equals 1
            return any(
                value is one or (plain and isinstance(value, type(one)) and value == one) for one in get_args(self.kind)
            )
        right = {int: is_whole, float: is_number}.get(self.kind)
        typed = right(value) if right else isinstance(value, get_origin(self.kind) or self.kind)
        return typed and all(limit.allows(value) for limit in self.ranges)

    def __str__(self) -> str:
        return f"{words_of(self.kind, self.ranges) or KINDS[self.kind]}{', or None' if self.optional else ''}"


@functools.cache
def declared_fields(kind: type) -> Mapping[str, Declared]:
    """Name of a field -> what a dataclass declares of it, where that can be checked.

    A subclass that gives a field another default keeps its range.

    Raises:
        TypeError: When an annotation names what its module does not hold at run time.
    """
    try:
        annotations = [inspect.get_annotations(base, eval_str=True) for base in kind.__mro__]
    except Exception as error:
        raise TypeError(
            f"{kind.__module__}.{kind.__qualname__}: an annotation cannot be read: {error}; import what it names at the top of the "
            "module, and not under TYPE_CHECKING"
        ) from error
    known = {}
    for spec in fields(kind):
        said = filter(None, (Declared.read(own[spec.name]) for own in annotations if spec.name in own))
        first = min(said, key=lambda one: one.kind in KINDS and not one.ranges, default=None)
        if first and (first.ranges or spec.repr):  # what ``fit`` fills has no part in the configuration
            known[spec.name] = first
    return MappingProxyType(known)


def check_fields(owner: Any) -> None:
    """Raises ``ValueError`` on the first value of a dataclass that its field's annotation does not allow.

    Bases of defences and attacks call it in ``__post_init__``.
    """
    for name, declared in declared_fields(type(owner)).items():  # type: ignore[arg-type]  # a type is hashable
        if not declared.allows(getattr(owner, name)):
            require(False, owner, name, str(declared))


def require(condition: bool, owner: Any, name: str, allowed: str) -> None:
    """Raises ``ValueError`` naming the field, its value and what is allowed, unless ``condition`` holds."""
    if not condition:
        raise ValueError(f"{name} is {shown(getattr(owner, name))}; allowed: {allowed}")


def shown(value: Any, most: int = LONGEST) -> str:
    """A value in an error; what would fill a screen is cut."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # a number of more digits than Python writes, or tuples in tuples
        return f"{type(value).__name__} that is too large to show"
    return cut(text, most)


def cut(text: str, most: int) -> str:
    """The text, or its first ``most`` characters and its length."""
    return text if len(text) <= most else f"{text[:most]}... ({len(text)} characters)"


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def algorithm(kind: type[T]) -> type[T]:
    """Make the class of a defence or an attack a frozen dataclass whose ``repr`` stays its base's: the configuration text."""
    return dataclass(frozen=True, repr=False)(kind)


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
