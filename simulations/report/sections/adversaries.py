"""The report's sections on other adversaries than the honest-but-curious server: an active one, and one that sees sums alone."""

from collections.abc import Iterable, Sequence

from markupsafe import Markup

from attacks.metrics.costs import ATTACK, MODEL_REFUSED
from simulations.report.analysis.finding import Finding
from simulations.report.columns import DEFENCE, IMAGE_SCORES, STATUS, Cards, Column, Table, attack, card, round_of
from simulations.report.section import Content, OwnPictures, Section
from simulations.report.studies.cell import Cell
from simulations.report.studies.rows import grouped
from simulations.report.studies.score import exact
from simulations.report.studies.study import Study
from simulations.run_folder.rows import Row
from strategies.federated.aggregates import WITHHELD
from strategies.federated.observations import ACTIVE, AGGREGATE

ALARM = """<div class="banner alarm"><b>Not honest but curious.</b>
Each row needs a server that deviates from the protocol.</div>"""
MATCHED = """Each client scores the guesses against its own images, matched by assignment: a guess counts for at most one image of
each client, and with n clients each image chooses among n times as many guesses. Candidates are 100 for each guess where a client
has so many images; else the chance of a null guess, given under “identified”, is higher."""


def active_server(study: Study, _: Sequence[Finding]) -> Content | None:
    """A row for each attack; None where the server only observed."""
    groups = grouped(study.active_cells, lambda cell: (cell.defense, cell.attack, cell.round)).values()
    # An attack that all clients refused has a cell of that alone; it is shown where there is no better one.
    shown = [max(cells, key=lambda cell: (cell.has_result, len(cell.scores))) for cells in groups]

    def why(cell: Cell) -> str:
        return _each(row.message for row in _rows_of(study.active, cell) if row.metric == ATTACK.name)

    def refused(cell: Cell) -> str | None:
        rows = [
            row for row in _rows_of(study.active, cell) if row.metric == MODEL_REFUSED.name and row.value is not None
        ]
        share, n = exact(rows), sum(row.n for row in rows)
        return f"{round(share[0] * n)} of {n}" if share else None

    columns = (
        DEFENCE,
        attack(lambda cell: (round_of(cell), why(cell))),
        Column("Status", lambda cell: cell.status if cell.has_result or why(cell) else "no answer", "status"),
        Column("Refused by", refused, numeric=True),
        *IMAGE_SCORES,
        Column("Threat class", lambda cell: cell.fact("threat_class") or None, numeric=True),
        card(own := Cards(shown)),
    )
    return Content([Markup(ALARM), Table("Active server", columns, shown), OwnPictures(), own]) if shown else None


def aggregates(study: Study, _: Sequence[Finding]) -> Content | None:
    """A row for each attack, by defence, round and attack, then by the number of clients; None where no sums were attacked."""
    sums, order = study.aggregate_cells, study.pipelines.index
    attacks = list(dict.fromkeys(cell.attack for cell in sums))
    cells = sorted(sums, key=lambda c: (order(c.defense), c.round, attacks.index(c.attack), c.card.clients or 1))
    hidden = dict.fromkeys(row.message for row in study.rows if row.metric == WITHHELD)

    def failures(cell: Cell) -> str:
        same = [row for row in _rows_of(study.aggregates, cell) if row.card.clients == cell.card.clients]
        return _each(why for row in same for why in (row.message, *row.card.attack_failures))

    columns = (
        DEFENCE,
        attack(lambda cell: (round_of(cell), failures(cell))),
        STATUS,
        Column("Clients", lambda cell: cell.card.clients or 1, numeric=True),
        *IMAGE_SCORES,
        card(own := Cards(cells)),
    )
    parts = [Table("Sums of clients", columns, cells), MATCHED, *hidden, own] if cells else list(hidden)
    return Content(parts) if parts else None


def _each(reasons: Iterable[str]) -> str:
    return "; ".join(dict.fromkeys(filter(None, reasons)))


def _rows_of(rows: Sequence[Row], cell: Cell) -> list[Row]:
    place = cell.defense, cell.attack, cell.round
    return [row for row in rows if (row.defense, row.attack, row.round) == place]


SECTION = (
    Section(
        "active",
        "Active server",
        active_server,
        text="""This server sent clients models of its own making in place of the agreed one, and read the answers. It is another
        adversary than the honest-but-curious one of the rest of this page: nothing here counts in a verdict or a recommendation,
        and a client that checks what it is sent need not answer.""",
        own_pictures={ACTIVE.title: ()},
    ),
    Section(
        "aggregates",
        "Sums of clients",
        aggregates,
        text="""What the same attacks read where the server sees only the sum of n clients' one-step probes, as secure aggregation
        leaves it (assumed, not run: the simulated server holds the single updates and hides them from these attacks). With n = 1
        the sum is the plain probe. Nothing here counts in a verdict or a recommendation.""",
        metrics=(WITHHELD,),
        own_pictures={AGGREGATE.title: ()},
    ),
)
