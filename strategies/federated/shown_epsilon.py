"""An audited epsilon, as a row carries it in its column ``audit`` and reports show it."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Annotated, Any, Self

from pydantic import Field

from attacks.dp_audit.verdict import SMALLEST, Audit
from clients.wire.schema import readable
from defenses.neighbours import level_of

ROUNDING = 1e-9
"""Of a confidence that is computed from others."""
AUDIT = "audit"
"""Column of a row whose value ``ShownEpsilon.to_json`` gives."""
CONFIDENCE = 0.95
"""Of all bounds of a pipeline in one run together; a claim is refuted with no less."""
Bound = Annotated[float, Field(ge=0)]


@dataclass(frozen=True)
class ShownPart:
    """What one view of the messages shows, such as one tensor (``part``); bounds are as of ``ShownEpsilon``."""

    part: str
    canaries: int
    plain: Bound
    gaussian: Bound
    largest_plain: Bound
    largest_gaussian: Bound


@dataclass(frozen=True)
class ShownEpsilon:
    """Lower bounds of epsilon from canaries in a run, beside the claim; of several runs, those of the one seed with the largest.

    Attributes:
        claimed: The largest epsilon that a client's accountant reported; infinite without noise.
        delta: Of all epsilons.
        confidence: With which all bounds of one seed hold together, in [0, 1); of several seeds, the least.
        plain: The largest bound without an assumption about the mechanism.
        gaussian: The largest bound if noise is Gaussian.
        part: The view of the messages whose bound is the largest, of either kind. ``canaries``, ``guesses`` and ``correct``: of
            that bound.
        assumes: What that bound assumes of the mechanism; "" for nothing.
        largest_plain: The largest value, in any view, that the canaries could have given ``plain``.
        largest_gaussian: Likewise ``gaussian``.
        refuted_by: Views with a bound above the claim.
        parts: All views.
        covers: What claim and bounds are of, in sentences; "" for the whole run.
        neighbours: Between which data sets claim and bounds hold, a name of ``defenses.neighbours``; "" where a row does not say.
        seeds: Number of runs of which this one has the bound nearest to its claim, or furthest above it.
        seeds_above: Of several seeds, those with a bound above the claim. ``seeds_above_plain``: with the bound without an
            assumption above it.
    """

    claimed: Bound
    delta: Bound
    confidence: Bound
    plain: Bound
    gaussian: Bound
    part: str
    canaries: int
    guesses: int
    correct: int
    assumes: str
    largest_plain: Bound
    largest_gaussian: Bound
    refuted_by: tuple[str, ...] = ()
    parts: tuple[ShownPart, ...] = ()
    covers: str = ""
    neighbours: str = ""
    seeds: int = 1
    seeds_above: int = 0
    seeds_above_plain: int = 0

    @classmethod
    def of(cls, audit: Audit, neighbours: str) -> Self:
        """The findings of an audit whose claim and bounds hold between these ``neighbours``."""
        part, best = audit.strongest
        parts = tuple(
            ShownPart(name, plain.canaries, plain.epsilon, gaussian.epsilon, plain.largest, gaussian.largest)
            for name, (plain, gaussian) in audit.by_part.items()
        )
        confidence = audit.shown.confidence + audit.shown_gaussian.confidence - 1
        return cls(
            audit.claimed, audit.delta, confidence, audit.shown.epsilon, audit.shown_gaussian.epsilon, part, best.canaries,
            best.guesses, best.correct, best.assumption, audit.shown.largest, audit.shown_gaussian.largest, tuple(audit.refuted_by),
            parts, neighbours=neighbours,
        )  # fmt: skip

    @property
    def level(self) -> str:
        """What claim and bounds protect, "example-level" or "client-level"; "" where it is not known."""
        return level_of(self.neighbours)

    @property
    def shown(self) -> float:
        """The largest bound of either kind."""
        return max(self.plain, self.gaussian)

    @property
    def above(self) -> bool:
        """Whether a bound of this seed exceeds the claim."""
        return self.exceeded_by(self.shown)

    @property
    def corrected(self) -> float:
        """The confidence with which the bounds of all seeds hold together, by a union bound; in [0, 1)."""
        return max(0.0, 1 - self.seeds * (1 - self.confidence))

    @property
    def refuted(self) -> bool:
        """Whether a bound exceeds the claim, with a confidence of at least ``CONFIDENCE``.

        The largest bound of several seeds counts with the ``corrected`` confidence. Bounds above the claim in all seeds need no
        correction: under a true claim they are no more probable than one in a seed that was named in advance.
        """
        return self.above and self._certain(self.seeds_above)

    @property
    def refuted_plainly(self) -> bool:
        """Whether the bound without an assumption suffices for a refutation."""
        return self.exceeded_by(self.plain) and self._certain(self.seeds_above_plain)

    def _certain(self, above: int) -> bool:
        """Whether a bound above the claim in ``above`` of all seeds has enough confidence."""
        return (self.confidence if above == self.seeds else self.corrected) >= CONFIDENCE - ROUNDING

    @property
    def uncorrected(self) -> bool:
        """Whether a bound exceeds the claim with too little confidence once it is corrected for the number of seeds."""
        return self.above and not self.refuted

    @property
    def largest(self) -> float:
        """What the canaries could have shown at most, by either bound."""
        return max(self.largest_plain, self.largest_gaussian)

    def exceeded_by(self, bound: float) -> bool:
        """Whether such a bound would have refuted the claim."""
        return bound > self.claimed + SMALLEST

    @property
    def could_refute(self) -> bool:
        """Whether some result could have shown more than the claim, by either bound."""
        return self.exceeded_by(self.largest)

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
        """One object of JSON values and infinities, of one seed; ``level`` follows from ``neighbours``."""
        kept = {key: value for key, value in asdict(self).items() if not key.startswith("seeds")}
        return kept | {"level": self.level}

    @classmethod
    def from_json(cls, data: Any) -> Self | None:
        """Read the output of ``to_json``; None where a value is missing or not allowed."""
        return readable(cls, data)

    @classmethod
    def strongest(cls, audits: Sequence[Self]) -> Self | None:
        """Of several seeds the one nearest to a refutation, or furthest beyond it, with the number of seeds; None without any.

        Raises:
            ValueError: When their epsilons protect different things, so that they have no order.
        """
        if not audits:
            return None
        if len(levels := {audit.level for audit in audits}) > 1:
            named = ", ".join(sorted(level or "unknown" for level in levels))
            raise ValueError(f"levels are {named}; allowed: audits of one level")
        best = min(audits, key=lambda audit: (audit.claimed - audit.shown, -audit.shown))
        least, above = min(audit.confidence for audit in audits), sum(audit.above for audit in audits)
        plain = sum(audit.exceeded_by(audit.plain) for audit in audits)
        return replace(best, confidence=least, seeds=len(audits), seeds_above=above, seeds_above_plain=plain)
