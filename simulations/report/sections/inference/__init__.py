"""The report's section on edge-cloud inference."""

from __future__ import annotations

from simulations.report.section import Section
from simulations.report.sections.inference.analysis import MASKS, edge_cloud_inference
from simulations.report.sections.inference.template import INFERENCE

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
