"""The report's section on a recording of somebody's own Flower app: what was attacked, and what nobody could know."""

from __future__ import annotations

from simulations.report.section import Section
from simulations.report.sections.recorded.analysis import RECORDED, recorded_updates, said_first
from simulations.report.sections.recorded.template import RECORDING

SECTION = Section(
    name="recorded",
    title="The recording",
    view=recorded_updates,
    template=RECORDING,
    metrics=(RECORDED,),
    first=said_first,
)
