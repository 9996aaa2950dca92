"""Sizes of the probes that a server requests, as the setting ``probe-images`` writes them; without torch."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

from pydantic_core import CoreSchema, core_schema

from defenses.checks import MOST_EXAMPLES, MOST_TEXT, Limit

_SIZE = re.compile(r"([1-9][0-9]{0,6})(?:x([1-9][0-9]{0,6}))?")


@dataclass(frozen=True)
class Rung:
    """One size of probes; its text is ``B``, or ``BxS`` for several local steps.

    Attributes:
        images: Images of a local step (B).
        steps: Local steps (S), each on other images.
        targets: Probes of each client.
    """

    images: int
    steps: int = 1
    targets: int = 1

    @classmethod
    def read(cls, text: str) -> Rung | None:
        """The size whose text this is; None for any other text."""
        matched = _SIZE.fullmatch(text.strip())
        return cls(int(matched[1]), int(matched[2] or 1)) if matched else None

    @property
    def size(self) -> int:
        """Images behind one probe."""
        return self.images * self.steps

    @property
    def plan(self) -> dict[str, int]:
        """Fields of a plan that requests such probes."""
        return {"probe_images": self.images, "probe_steps": self.steps, "probe_targets": self.targets}

    def __str__(self) -> str:
        return f"{self.images}x{self.steps}" if self.steps > 1 else str(self.images)


def read_rungs(sizes: int | str, targets: int) -> tuple[Rung, ...]:
    """Read a ladder of probes, such as 4 or "1, 4, 1x4": ``targets`` probes of the first size, of each other size at most as many
    images, but one probe at least.

    Raises:
        ValueError: For a text that ``ProbeSizes`` refuses.
    """
    words = str(sizes).split(",")
    rungs = list(filter(None, map(Rung.read, words)))
    whole = len(words) == len(set(rungs)) and rungs[0].steps == 1
    if not whole or max(rung.size for rung in rungs) > MOST_EXAMPLES:
        raise ValueError(f"{sizes!r} is no ladder of probes")
    shown = targets * rungs[0].size
    return tuple(Rung(rung.images, rung.steps, max(1, shown // rung.size)) for rung in rungs)


class ProbeSizes(Limit):
    """What ``probe-images`` may be: a whole number, or a list of sizes as text."""

    def allows(self, value: Any) -> bool:
        """Whether it is one."""
        if not isinstance(value, str):
            return type(value) is int and super().allows(value)
        try:
            return len(value) <= MOST_TEXT and bool(read_rungs(value, 1))
        except ValueError:
            return False

    def require(self, value: Any, kind: Any) -> Any:
        """Return the value, of a list of one size its number; ``ValueError`` unless it is allowed."""
        value = super().require(value, kind)
        return int(value) if str(value).strip().isdecimal() else value

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(partial(self.require, kind=source))

    def words(self, kind: Any) -> str:
        """See ``Allowed``."""
        return f"{super().words(int)}, or a list such as '1, 4, 1x4', where BxS behind the first is S steps on B images each"


Sizes = Annotated[int | str, ProbeSizes(1, MOST_EXAMPLES)]
