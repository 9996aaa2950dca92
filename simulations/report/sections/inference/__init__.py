"""The report's section on edge-cloud inference: accuracy of the answers, cost of the messages, and recovery from them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from attacks.metrics.services import QUERY_BYTES
from simulations.report.analysis.line import Line
from simulations.report.section import Section
from simulations.report.sections.inference.cuts import Cut, CutReader
from simulations.report.sections.inference.equation import NOT_SATISFIED, SATISFIED
from simulations.report.sections.inference.fit_curves import FitCurve, fit_curves
from simulations.report.sections.inference.template import INFERENCE
from simulations.report.studies.cell import Cell
from simulations.report.studies.study import Study
from strategies.inference.observations import Queried

MASKS = {"delta masks": ("image", "server-cam", "adversary-cam", "mask", "masked")}
"""What the index of pictures calls those of delta masks, and their kinds in the order of their making."""


@dataclass(frozen=True)
class Conclusion:
    """Conclusions of the static adversary that the retrained one confirms, refutes or leaves open.

    Attributes:
        cases: How many there are: defences under which the attribute was inferred.
        satisfied: Cases in which Equation 1 is satisfied with the static adversary.
        survive: Those of them in which it still is with the retrained one.
        fall: Those in which it is not.
        open: The others, which are undecided.
        retrained: Cases in which an adversary was retrained.
        reads: Those of them in which it reads more than the most frequent value, with its whole interval.
    """

    cases: int
    satisfied: int
    survive: tuple[str, ...]
    fall: tuple[str, ...]
    open: tuple[str, ...]
    retrained: int
    reads: int


@dataclass(frozen=True)
class EdgeCloudInference:
    """The section for one cut.

    Attributes:
        cut: What is answered, inferred and reconstructed there.
        conclusion: None where no attribute was inferred.
        cells: One for each attack that reconstructs the queries under a defence.
        curves: Of fits.
    """

    cut: Cut
    conclusion: Conclusion | None
    cells: tuple[Cell, ...]
    curves: tuple[FitCurve, ...]


def edge_cloud_inference(study: Study, _: Sequence[Line]) -> EdgeCloudInference | None:
    """The section, or None for a study without queries."""
    if not any(row.metric == QUERY_BYTES.name for row in study.rows):
        return None
    cut = CutReader(study).cut()
    cells = (cell for cell in study.cells if cell.observation == Queried.title and cell.psnr is not None)
    return EdgeCloudInference(cut, conclusion(cut), tuple(cells), fit_curves(study))


def conclusion(cut: Cut) -> Conclusion | None:
    """The conclusion over all defences; None where no attribute was inferred under one."""
    found = [line for line in cut.lines if line.defense and (line.static or line.retrained)]
    if not found:
        return None
    satisfied = [line for line in found if line.static and line.static.equation == SATISFIED]
    groups: dict[str, list[str]] = {SATISFIED: [], NOT_SATISFIED: []}
    rest: list[str] = []
    for line in satisfied:
        groups.get(line.retrained.equation if line.retrained else "", rest).append(line.defense)
    retrained = [line.retrained for line in found if line.retrained]
    return Conclusion(
        cases=len(found),
        satisfied=len(satisfied),
        survive=tuple(groups[SATISFIED]),
        fall=tuple(groups[NOT_SATISFIED]),
        open=tuple(rest),
        retrained=len(retrained),
        reads=sum(one.beats_null for one in retrained),
    )


SECTION = Section(
    name="inference",
    title="Edge-cloud inference",
    about="A cloud trains a classifier on images of its own. Clients hold the lower half, send the features of their private "
    "images, and the cloud answers.",
    view=edge_cloud_inference,
    template=INFERENCE,
    deployed_on=" or features",
    pictures_show="what entered the client half; what a defence does to its features does not show in it",
    own_pictures=MASKS,
)
