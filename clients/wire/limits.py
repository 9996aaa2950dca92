"""Types of numbers and texts with their ranges, declared once for settings and for plans that nodes receive; without torch.

A node checks a plan itself: a server may send anything.
"""

from abc import ABC, abstractmethod
from collections.abc import Sized
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import GetCoreSchemaHandler
from pydantic_core import CoreSchema, core_schema

MOST_STEPS = 10**9
"""Of local passes or steps: eleven days at a thousandth of a second each."""
MOST_ROUNDS = 10**6
"""Eleven days at a second each."""
MOST_SIDE = 4096
"""Of an image in pixels: a 16-megapixel photograph, 200 MB as floats."""
MOST_IMAGES = 2**20
"""Of a batch, or of batches in a message: sixteen times the largest published batches (65,536)."""
MOST_CANARIES = 65_536
"""Of one client: its training holds a gradient of the whole model for each of those in a batch."""
MOST_WIDTH = 65_536
"""Channels or values of one layer: five times those of the widest published transformers (12,288)."""
MOST_DEPTH = 1000
"""Blocks, or attention heads of one: ten times those of the deepest published transformers (96)."""
MOST_COUNTED = 2**63 - 1
"""What TOML, Flower and torch hold of a whole number: for counts of which more than there is means all."""
LEAST_RATE, MOST_RATE = 1e-12, 1e6
"""Of learning: float32 holds 7 digits, so that a smaller step changes no weight, and a larger one leaves nothing of it."""
MOST_TEXT = 4096
"""Characters of a name, a path or a list in words: the longest path of a file."""


class Allowed(ABC):
    """What a value may be besides its type, as metadata of ``Annotated``; its text says it in an error and in the help."""

    @abstractmethod
    def allows(self, value: Any) -> bool:
        """Whether a value of the type is allowed."""

    def require(self, value: Any) -> Any:
        """Return the value; ``ValueError`` unless it is allowed."""
        if not self.allows(value):
            raise ValueError(str(self))
        return value

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_after_validator_function(self.require, handler(source))


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

    def __str__(self) -> str:
        start = f"{'above' if self.above else 'at least'} {_number(self.least)}"
        end = f"{'below' if self.below else 'at most'} {_number(self.most)}"
        return f"{'' if self.also is None else f'{self.word or _number(self.also)}, or '}{start}, {end}"


def _number(number: float) -> str:
    return str(number) if isinstance(number, int) else f"{number:g}"


@dataclass(frozen=True)
class OneLine(Allowed):
    """A text of one line with at most so many characters."""

    most: int

    def allows(self, value: str) -> bool:
        """Whether a text is no longer, and prints as it is."""
        return len(value) <= self.most and value.isprintable()

    def __str__(self) -> str:
        return f"one line of at most {self.most} characters"


@dataclass(frozen=True)
class Length(Allowed):
    """The most characters of a text, or entries of a list."""

    most: int

    def allows(self, value: Sized) -> bool:
        """Whether it is no longer."""
        return len(value) <= self.most

    def __str__(self) -> str:
        return f"at most {self.most}"


Text = Annotated[str, Length(MOST_TEXT)]
Norm = Literal["group", "batch"]
ProbeMode = Literal["train", "eval"]
Optimizer = Literal["sgd", "adamw"]
Count = Annotated[int, Limit(0)]
"""Of what there is: more means all. Or a number that only names a stream, such as a seed."""
SIDE = Limit(2, MOST_SIDE, also=0)
Side = Annotated[int, SIDE]
"""Of images, 0 for no scaling. Images of one pixel are refused: shuffles, crops and scores need more."""
Pixels = Annotated[int, Limit(1, MOST_SIDE)]
Padding = Annotated[int, Limit(0, MOST_SIDE)]
Width = Annotated[int, Limit(0, MOST_WIDTH)]
"""0 for the model's own."""
Blocks = Annotated[int, Limit(1, MOST_DEPTH)]
"""Or attention heads of one."""
BlocksOrNone = Annotated[int, Limit(0, MOST_DEPTH)]
Rounds = Annotated[int, Limit(1, MOST_ROUNDS)]
"""Or passes."""
Steps = Annotated[int, Limit(1, MOST_STEPS)]
StepsOrNone = Annotated[int, Limit(0, MOST_STEPS)]
Images = Annotated[int, Limit(1, MOST_IMAGES)]
"""Of a batch; or batches."""
Canaries = Annotated[int, Limit(0, MOST_CANARIES)]
Rate = Annotated[float, Limit(LEAST_RATE, MOST_RATE)]
"""Of learning."""
Decay = Annotated[float, Limit(0, MOST_RATE)]
Share = Annotated[float, Limit(0, 1, above=True)]
BelowOne = Annotated[float, Limit(0, 1, below=True)]
Gibibytes = Annotated[float, Limit(1e-9, 1e6)]
"""From one byte."""
