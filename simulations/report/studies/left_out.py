"""Cells without one client: the other clients' scores stand in its place, and a verdict that changes hangs on that client."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from attacks.metrics.costs import ATTACK
from simulations.report.studies.baselines import Nulls
from simulations.report.studies.cell import FOUND, RESULTS, SEEN, Cell
from simulations.report.studies.control import validate
from simulations.report.studies.rows import grouped
from simulations.report.studies.study import Place, Study, cell_of, place_of
from simulations.run_folder.rows import NAMES, Row

JUDGED = ("not-validated", "under-powered")
"""Statuses that ``validate`` gives, and gives again."""
DECIDING = frozenset((*RESULTS, FOUND, SEEN, ATTACK.of()))
"""Scores that a verdict and its status follow from."""
Places = Mapping[int, Mapping[Place, Sequence[Row]]]
"""Seed -> place of a cell -> its rows of ``DECIDING`` scores."""


def left_out(study: Study) -> dict[str, Callable[[Cell], Cell | None]]:
    """Name of a client -> a cell of the study -> the same without the client, with ``DECIDING`` scores alone."""
    rows = [replace(row, status="ok") if row.status in JUDGED else row for row in study.rows]
    clients = dict.fromkeys((row.seed, client) for row in rows for client in row.of_clients.without_client)
    if not clients:
        return {}
    several = len({seed for seed, _ in clients}) > 1
    # Controls are of one seed, but for those of class representatives, and of defences of what the server sees itself.
    whole = bool(study.class_attacks) or any(row.card.undefended for row in rows)
    by_seed, every = grouped(rows, lambda row: row.seed), validate(rows)
    places, nulls = _places(every), Nulls(every)
    found = dict[str, Callable[[Cell], Cell | None]]()
    for seed, client in clients:
        among = [_without(row, seed, client) for row in (rows if whole else by_seed[seed])]
        name = f"client {client}{f' of seed {seed}' if several else ''}"
        found[name] = partial(_same_cell, {**places, **_places(validate(among))}, Nulls(among).over(nulls))
    return found


def _places(rows: Iterable[Row]) -> Places:
    able = (row for row in rows if row.is_attack and (row.metric, row.reference) in DECIDING)
    return {seed: grouped(of, place_of) for seed, of in grouped(able, lambda row: row.seed).items()}


def _same_cell(places: Places, nulls: Nulls, cell: Cell) -> Cell | None:
    """The cell of the same attack on the same messages."""
    place = cell.defense, cell.role, cell.attack, cell.round, cell.card
    rows = [row for of in places.values() for row in of.get(place, ())]
    return cell_of(place, rows, nulls, None) if rows else None


def _without(row: Row, seed: int, client: str) -> Row:
    changed = row.of_clients.without_client.get(client, {}) if row.seed == seed else {}
    if not changed:
        return row
    known = {name: getattr(row, name) for name in NAMES if name != "extra"}
    return Row.from_json({**known, **row.extra, **changed, "card": row.card.to_json() | changed.get("card", {})})
