"""The report's section on sums of clients' updates, apart from what is said of single updates."""

from __future__ import annotations

from simulations.report.section import Section
from simulations.report.sections.aggregates.analysis import aggregates
from simulations.report.sections.aggregates.template import AGGREGATES
from strategies.federated.aggregates import WITHHELD
from strategies.federated.observations import AGGREGATE

SECTION = Section(
    name="aggregates",
    title="Sums of clients",
    view=aggregates,
    template=AGGREGATES,
    metrics=(WITHHELD,),
    own_pictures={AGGREGATE.title: ()},
)
