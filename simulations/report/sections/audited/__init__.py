"""The report's section on an audited app: what nobody could know of its clients."""

from __future__ import annotations

from simulations.report.sections.audited.analysis import audited_app
from simulations.report.sections.audited.template import AUDITED
from simulations.report.sections.base import Section
from strategies.audited.assumed import ASSUMED, DIFFERENCE

SECTION = Section(
    name="audited",
    title="The app",
    view=audited_app,
    template=AUDITED,
    metrics=(ASSUMED, DIFFERENCE),
)
