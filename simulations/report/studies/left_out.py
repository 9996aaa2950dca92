"""Studies without one of their clients: a verdict that changes hangs on what a single client sent."""

import json
from dataclasses import replace

from simulations.report.studies.cell import Cell
from simulations.report.studies.control import validate
from simulations.report.studies.study import Study
from simulations.run_folder.rows import Row
from strategies.exchange.columns import OfClients

JUDGED = ("not-validated", "under-powered")
"""Statuses that ``validate`` gives, and gives again."""


def left_out(study: Study) -> dict[str, Study]:
    """Name of a client -> the study with the other clients' scores in its place; of one adversary, as in ``Study.rows``."""
    clients = dict.fromkeys((row.seed, client) for row in study.rows for client in row.read(OfClients).without_client)
    seeds = len({seed for seed, _ in clients}) > 1
    return {
        f"client {client}{f' of seed {seed}' if seeds else ''}": replace(
            study, rows=tuple(validate([_without(row, seed, client) for row in study.rows]))
        )
        for seed, client in clients
    }


def same_cell(cell: Cell, study: Study) -> Cell | None:
    """The cell of another study that is of the same attack on the same messages."""
    key = (cell.defense, cell.role, cell.attack, cell.round, cell.card)
    return next((one for one in study.cells if (one.defense, one.role, one.attack, one.round, one.card) == key), None)


def _without(row: Row, seed: int, client: str) -> Row:
    row = replace(row, status="ok") if row.status in JUDGED else row
    changed = row.read(OfClients).without_client.get(client, {}) if row.seed == seed else {}
    card = row.card.to_json() | changed.get("card", {})
    return Row.from_json({**json.loads(row.line), **changed, "card": card}) if changed else row
