"""The report's section on an active server: in red, and apart from all that is said of the honest-but-curious one."""

from __future__ import annotations

from simulations.report.section import Section
from simulations.report.sections.active.analysis import active_server
from simulations.report.sections.active.template import ACTIVE
from strategies.federated.observations import ACTIVE as KIND

SECTION = Section(
    name="active",
    title="Active server",
    view=active_server,
    template=ACTIVE,
    own_pictures={KIND.title: ()},
)
