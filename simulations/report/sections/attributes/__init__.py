"""The report's section on a sensitive attribute, wherever it was guessed from training or its evaluation."""

from __future__ import annotations

from simulations.report.section import Section
from simulations.report.sections.attributes.analysis import inferred_attributes
from simulations.report.sections.attributes.template import ATTRIBUTES

SECTION = Section("attributes", "Sensitive attribute", inferred_attributes, ATTRIBUTES)
