"""Rows of the table of agreement with released code: what was compared, on how much, how far apart, and the verdict."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

HEADER = ("released code", "what", "inputs", "difference", "verdict", "note")


@dataclass(frozen=True)
class Row:
    """One comparison.

    Attributes:
        what: The quantity, and the functions that computed it.
        inputs: How many inputs of which kind.
        difference: What was found, in words with a number.
        agrees: Whether the difference is within what rounding explains.
        on_purpose: Why this project departs from the released code, where it does.
        explained: Whether the difference was measured to be what the reason predicts, or is within a second bound of its own. A
            reason alone excuses nothing.
        note: What else a reader must know.
        code: The repository that the released side came from.
    """

    what: str
    inputs: str
    difference: str
    agrees: bool
    on_purpose: str = ""
    note: str = ""
    code: str = ""
    explained: bool = False

    @property
    def verdict(self) -> str:
        """agrees; differs on purpose, where a difference has a reason that was checked; else DISAGREES."""
        if self.agrees:
            return "agrees"
        return "differs on purpose" if self.on_purpose and self.explained else "DISAGREES"

    def line(self) -> str:
        """The row in Markdown."""
        note = self.note if self.agrees else " ".join(filter(None, (self.on_purpose, self.note)))
        return "| " + " | ".join((self.code, self.what, self.inputs, self.difference, self.verdict, note)) + " |"


def largest(ours: Tensor, theirs: Tensor) -> float:
    """Largest absolute difference of two tensors of one shape; infinite where one of them is NaN.

    Raises:
        ValueError: When the shapes differ.
    """
    if ours.shape != theirs.shape:
        raise ValueError(f"shapes {tuple(ours.shape)} and {tuple(theirs.shape)}")
    difference = (ours.detach().double() - theirs.detach().double()).abs()
    return float(difference.nan_to_num(nan=torch.inf).max())


def close(
    what: str,
    inputs: str,
    ours: Tensor,
    theirs: Tensor,
    allowed: float,
    on_purpose: str = "",
    note: str = "",
    unit: str = "",
    most: float = 0.0,
) -> Row:
    """A row of numbers that agree where none is further than ``allowed`` from its counterpart.

    With a reason they may be ``most`` apart.
    """
    found = largest(ours, theirs)
    return Row(what, inputs, f"at most {found:.2g}{unit}", found <= allowed, on_purpose, note, explained=found <= most)


def equal(
    what: str,
    inputs: str,
    pairs: Iterable[tuple[object, object]],
    on_purpose: str = "",
    note: str = "",
    explained: bool = False,
) -> Row:
    """A row of pairs (ours, theirs) that agree where all are equal."""
    same = [ours == theirs for ours, theirs in pairs]
    agrees = bool(same) and all(same)
    return Row(
        what, inputs, f"{sum(same)} of {len(same)} equal", agrees, on_purpose, note, explained=explained and bool(same)
    )


def guarded(name: str, compare: Callable[[], Iterable[Row]], expected: int) -> Iterator[Row]:
    """The rows of a comparison; one more where it ends with an error or with another number of rows than ``expected``.

    Released code may also end by ``exit``.
    """
    found = 0
    try:
        for row in compare():
            found += 1
            yield row
        if found != expected:
            yield Row(name, "", f"gave {found} of {expected} rows", agrees=False)
    except (Exception, SystemExit) as error:
        told = " ".join(f"{type(error).__name__}: {error}".split()).replace("|", "/")
        yield Row(name, "", f"did not run: {told[:200]}", agrees=False)


def table(rows: Iterable[Row]) -> Iterator[str]:
    """The lines of the table, each as soon as its row is known."""
    yield "| " + " | ".join(HEADER) + " |"
    yield "|" + "---|" * len(HEADER)
    for row in rows:
        yield row.line()
