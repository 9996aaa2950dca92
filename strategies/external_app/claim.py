"""An app's own claim of differential privacy, as rows carry it and reports show it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from strategies.audit.threat_card import MOST_VALUE

CLAIMED = "claimed-privacy"
"""Metric of the row whose column ``claims`` lists the claims of the app, each as ``Claim.to_json`` gives it."""
METRICS, MOD, WRAPPER, ACCOUNTANT = "client metrics", "client mod", "server wrapper", "server accountant"
"""What makes a claim: ``Claim.source``."""


@dataclass(frozen=True)
class Claim:
    """An app's own statement about its differential privacy; fedveil proves no part of it.

    Attributes:
        source: What makes the claim: one of ``METRICS``, ``MOD``, ``WRAPPER`` and ``ACCOUNTANT``.
        text: The claim in sentences, for people.
        rounds: Number of rounds in which the claim was made.
        epsilon: Largest epsilon that was reported, finite and at least 0; None where none was.
        lowest: Smallest epsilon that was reported.
        delta: Largest delta that was reported, in [0, 1).
        note: What the number is about, such as "for each message"; "" where the app does not say.
    """

    source: str
    text: str
    rounds: int = 0
    epsilon: float | None = None
    lowest: float | None = None
    delta: float | None = None
    note: str = ""

    @property
    def number(self) -> str:
        """Epsilon as tables show it; "" where none was reported."""
        return "" if self.epsilon is None else f"{brief(self.epsilon)} (the app's word)"

    @property
    def detail(self) -> str:
        """The claim's delta, source and subject."""
        delta = "" if self.delta is None else f"\N{GREEK SMALL LETTER DELTA} = {brief(self.delta)}"
        return ", ".join(filter(None, (delta, self.source, self.note)))

    def to_json(self) -> dict[str, Any]:
        """One object of JSON values."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Any) -> Claim | None:
        """Read the output of ``to_json``; None for a claim without text. A number out of range is left out."""
        found = data if isinstance(data, Mapping) else {}
        text, rounds = found.get("text"), number_of(found.get("rounds"))
        if not isinstance(text, str) or not text:
            return None
        return cls(
            str(found.get("source", "")), text, int(rounds or 0), number_of(found.get("epsilon")), number_of(found.get("lowest")),
            number_of(found.get("delta"), below=1.0), str(found.get("note", "")),
        )  # fmt: skip


def number_of(value: Any, below: float = math.inf) -> float | None:
    """A finite number from 0 on and under ``below``; None for any other value, truth values included."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= MOST_VALUE:
        return None
    return float(value) if value < below else None


def brief(value: float) -> str:
    """A number with four digits at most."""
    return f"{value:.4g}"
