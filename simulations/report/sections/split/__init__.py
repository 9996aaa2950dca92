"""The report's section on split learning."""

from __future__ import annotations

from simulations.report.section import Section
from simulations.report.sections.split.analysis import split_learning
from simulations.report.sections.split.template import SPLIT

SECTION = Section(
    name="split",
    title="Split learning",
    view=split_learning,
    template=SPLIT,
    deployed_on=" or tokens",
    pictures_show="what entered the client half; what a defence does to its tokens does not show in it",
)
