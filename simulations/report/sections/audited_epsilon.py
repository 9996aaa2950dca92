"""The report's section on claimed epsilons that canaries tested: bounds, gap, power, and what each view of the messages shows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from attacks.dp_audit.bounds import LITTLE
from attacks.dp_audit.verdict import SMALLEST
from attacks.metrics.training import EPSILON_SHOWN, EPSILON_SHOWN_GAUSSIAN
from simulations.report.analysis.finding import Finding
from simulations.report.drawing.chart import Chart
from simulations.report.drawing.looks import Faces
from simulations.report.drawing.plots import epsilons
from simulations.report.section import Section
from simulations.report.studies.study import Study
from strategies.federated.shown_epsilon import CONFIDENCE, ShownEpsilon

NO_REFUTATION = "could not have refuted the claim"


@dataclass(frozen=True)
class AuditedEpsilon:
    """The section.

    Attributes:
        audits: Defence and its audit, which names what its epsilon protects.
        little: A bound that could not have exceeded this is without power.
        confidence: Least confidence of a refutation.
    """

    audits: tuple[tuple[str, ShownEpsilon], ...]
    little: float = LITTLE
    confidence: float = CONFIDENCE

    @property
    def seeds(self) -> int:
        """The most seeds of a defence."""
        return max(one.seeds for _, one in self.audits)

    @property
    def joint(self) -> float:
        """The confidence with which all bounds of all audits and seeds hold together, by a union bound; in [0, 1)."""
        return max(0.0, 1 - sum(one.seeds * (1 - one.confidence) for _, one in self.audits))

    def chart(self, faces: Faces) -> Chart:
        """Claims and bounds."""
        return epsilons(self.audits, faces)

    def limit(self, largest: float, claimed: float) -> str:
        """What a bound cannot say that could be ``largest`` at most, beside a claim; "" for one with power."""
        powerless = "no power" if largest < self.little else ""
        return ", ".join(filter(None, [powerless, "" if largest > claimed + SMALLEST else NO_REFUTATION]))

    @property
    def levels(self) -> tuple[str, ...]:
        """What the epsilons protect, each level once."""
        return tuple(sorted({one.level for _, one in self.audits if one.level}))


def audited_epsilon(_: Study, lines: Sequence[Finding]) -> AuditedEpsilon | None:
    """The section; None where no claim was audited."""
    audits = tuple((line.defense, line.budget.shown) for line in lines if line.budget and line.budget.shown)
    return AuditedEpsilon(audits) if audits else None


SECTION = Section(
    name="audited_epsilon",
    title="Epsilon claimed and shown",
    view=audited_epsilon,
    template="sections/audited_epsilon.html",
    metrics=(EPSILON_SHOWN.name, EPSILON_SHOWN_GAUSSIAN.name),
)
