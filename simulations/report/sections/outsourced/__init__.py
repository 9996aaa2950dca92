"""The report's section on outsourced training."""

from __future__ import annotations

from simulations.report.section import Section
from simulations.report.sections.outsourced.analysis import METRICS, outsourced_training
from simulations.report.sections.outsourced.template import OUTSOURCED

SECTION = Section(
    name="outsourced",
    title="Outsourced training",
    view=outsourced_training,
    template=OUTSOURCED,
    metrics=METRICS,
    pictures_show="the images as they were uploaded",
)
