"""The report's section on an audited app: what nobody could know of its clients."""

from __future__ import annotations

from simulations.report.section import Section
from simulations.report.sections.external_app.analysis import audited_app
from simulations.report.sections.external_app.template import AUDITED
from strategies.external_app.assumptions import ASSUMED, DIFFERENCE

SECTION = Section(
    name="audited",
    title="The app",
    view=audited_app,
    template=AUDITED,
    metrics=(ASSUMED, DIFFERENCE),
)
