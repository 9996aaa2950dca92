"""An audited epsilon, as a row carries it in its column ``audit`` and reports show it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Self

from attacks.dp_audit.bounds import LITTLE
from attacks.dp_audit.verdict import SMALLEST, Audit

AUDIT = "audit"
"""Column of a row whose value ``ShownEpsilon.to_json`` gives."""


@dataclass(frozen=True)
class ShownPart:
    """What one view of the messages shows.

    Attributes:
        part: Its name, such as that of a tensor.
        canaries: Their number.
        plain: Lower bound of epsilon without an assumption about the mechanism.
        gaussian: Lower bound if noise is Gaussian.
        largest: What these canaries could have shown at most, by either bound.
    """

    part: str
    canaries: int
    plain: float
    gaussian: float
    largest: float


@dataclass(frozen=True)
class ShownEpsilon:
    """Lower bounds of epsilon from canaries in a run, beside the claim.

    Attributes:
        claimed: The largest epsilon that a client's accountant reported; infinite without noise.
        delta: Of all epsilons.
        confidence: With which all bounds hold together, in [0, 1).
        plain: The largest bound without an assumption about the mechanism.
        gaussian: The largest bound if noise is Gaussian.
        part: The view of the messages whose bound is the largest, of either kind. ``canaries``, ``guesses`` and ``correct``: of
            that bound.
        assumes: What that bound assumes of the mechanism; "" for nothing.
        largest: What the canaries could have shown at most, in any view and by either bound.
        refuted_by: Views with a bound above the claim.
        parts: All views.
    """

    claimed: float
    delta: float
    confidence: float
    plain: float
    gaussian: float
    part: str
    canaries: int
    guesses: int
    correct: int
    assumes: str
    largest: float
    refuted_by: tuple[str, ...] = ()
    parts: tuple[ShownPart, ...] = ()

    @classmethod
    def of(cls, audit: Audit) -> Self:
        """The findings of an audit."""
        part, best = audit.strongest
        parts = tuple(
            ShownPart(name, plain.canaries, plain.epsilon, gaussian.epsilon, max(plain.largest, gaussian.largest))
            for name, (plain, gaussian) in audit.by_part.items()
        )
        confidence = audit.shown.confidence + audit.shown_gaussian.confidence - 1
        return cls(
            audit.claimed, audit.delta, confidence, audit.shown.epsilon, audit.shown_gaussian.epsilon, part, best.canaries,
            best.guesses, best.correct, best.assumption, max(one.largest for one in parts), tuple(audit.refuted_by), parts,
        )  # fmt: skip

    @property
    def shown(self) -> float:
        """The largest bound of either kind."""
        return max(self.plain, self.gaussian)

    @property
    def refuted(self) -> bool:
        """Whether a bound exceeds the claim."""
        return self.shown > self.claimed + SMALLEST

    @property
    def powerless(self) -> bool:
        """Whether no result could have shown an epsilon of 1, so that a small bound is no evidence of privacy."""
        return self.largest < LITTLE

    @property
    def gap(self) -> float:
        """The claim less the bound without an assumption; negative where this bound is above the claim."""
        return self.claimed - self.plain

    @property
    def gap_gaussian(self) -> float:
        """The claim less the bound if noise is Gaussian; negative where this bound is above the claim."""
        return self.claimed - self.gaussian

    @property
    def gaussian_adds(self) -> bool:
        """Whether the assumption of Gaussian noise gives a larger bound."""
        return self.gaussian > self.plain

    def to_json(self) -> dict[str, Any]:
        """One object of JSON values and infinities."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Any) -> Self | None:
        """Read the output of ``to_json``; None where a number is missing or is none."""
        if not isinstance(data, Mapping):
            return None
        try:
            parts = tuple(
                ShownPart(
                    str(one["part"]),
                    int(one["canaries"]),
                    *(_bound(one[key]) for key in ("plain", "gaussian", "largest")),
                )
                for one in data.get("parts", ())
            )
            return cls(
                _bound(data["claimed"]), _bound(data["delta"]), _bound(data["confidence"]), _bound(data["plain"]),
                _bound(data["gaussian"]), str(data["part"]), int(data["canaries"]), int(data["guesses"]), int(data["correct"]),
                str(data["assumes"]), _bound(data["largest"]), tuple(map(str, data.get("refuted_by", ()))), parts,
            )  # fmt: skip
        except (KeyError, TypeError, ValueError, OverflowError):
            return None

    @classmethod
    def strongest(cls, found: Sequence[Self]) -> Self | None:
        """Of several seeds the one nearest to a refutation, or furthest beyond it; None without any.

        The confidence is that of the statement about all seeds: one minus the sum of their errors.
        """
        if not found:
            return None
        best = min(found, key=lambda one: (one.claimed - one.shown, -one.shown))
        errors = math.fsum(1 - one.confidence for one in found)
        return replace(best, confidence=max(0.0, 1 - errors))


def _bound(value: Any) -> float:
    """A number from 0 on; ``ValueError`` for any other value."""
    number = float(value)
    if not number >= 0:
        raise ValueError(f"{number} is no bound")
    return number
