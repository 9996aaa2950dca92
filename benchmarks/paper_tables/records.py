"""The small files of finished runs: the rows that claims read, one JSON file for each run and seed."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from catalogue import Cell

from attacks.metrics.names import Role
from attacks.metrics.training import TEST_ACCURACY
from simulations.report.analysis.run import read_run
from simulations.run_folder.rows import Row

FOLDER = Path(__file__).resolve().parents[1] / "results" / "paper_tables"
NULLS = ("grey", "mean")
"""Names of null baselines, which stand in rows as attacks do."""
KEPT = ("defense", "attack", "role", "metric", "reference", "cut", "round", "value", "ci_low", "ci_high", "n", "status")
"""Fields of a row that are kept."""
VERSIONS = ("fedveil", "flwr", "torch", "python")
"""Versions that are kept where the run's configuration has them."""

LATE = "three quarters"
"""The last round with a number of those before the last quarter, and after the first half."""

Records = Mapping[str, Mapping[int, Sequence[Row]]]
"""Name of a run -> seed -> rows."""


def chosen(rows: Sequence[Row], cell: Cell) -> list[Row]:
    """The rows of one seed that are the cell's number: one, or one for each client."""
    found = [row for row in rows if _fits(row, cell)]
    if cell.reference == "deployed":
        deployed = [row for row in found if row.reference == "transformed"]
        found = deployed or [row for row in found if row.reference == "original"]
    rounds = [row.round for row in found]
    if not rounds:
        return []
    end = max(rounds)
    late = max((at for at in rounds if end / 2 <= at <= 0.75 * end), default=None)
    at = {"first": min(rounds), "last": end, LATE: late}.get(str(cell.at), cell.at)
    return [row for row in found if row.round == at]


def _fits(row: Row, cell: Cell) -> bool:
    if (row.metric, row.defense, row.attack) != (cell.metric, cell.defense, cell.attack):
        return False
    if (row.role is Role.NULL_BASELINE) != (cell.attack in NULLS):
        return False
    if cell.observation not in ("", row.card.observation):
        return False
    return cell.reference in ("deployed", row.reference) and cell.cut in ("", row.cut)


def keep(folder: Path, run: str, seed: int, cells: Sequence[Cell]) -> list[str]:
    """Write the small file of a finished run's folder, with the rows that cells read; cells without a row, in words."""
    whole = read_run(folder)
    found = {cell: chosen(whole.rows, cell) for cell in cells}
    late = [chosen(whole.rows, replace(cell, at=LATE)) for cell in cells if cell.metric == TEST_ACCURACY.name]
    lines = sorted({json.dumps(_kept(row)) for rows in (*found.values(), *late) for row in rows})
    versions = {name: text for name, text in sorted((whole.config.get("versions") or {}).items()) if name in VERSIONS}
    head = f'{{"run": {json.dumps(run)}, "seed": {seed}, "versions": {json.dumps(versions)}, "rows": [\n'
    (FOLDER / f"{run}-seed{seed}.json").write_text(head + ",\n".join(lines) + "\n]}\n", encoding="utf-8")
    missing = [cell for cell, rows in found.items() if not rows]
    return [f"{one.metric} of {one.attack or 'training'} under {one.defense or 'no defence'}" for one in missing]


def _kept(row: Row) -> dict[str, Any]:
    full = json.loads(row.line)
    observation = row.card.observation
    return {name: full[name] for name in KEPT} | ({"card": {"observation": observation}} if observation else {})


def read() -> dict[str, dict[int, list[Row]]]:
    """All small files."""
    found: dict[str, dict[int, list[Row]]] = {}
    for path in sorted(FOLDER.glob("*.json")):
        data = json.loads(path.read_text(encoding="utf-8"))
        rows = [Row.from_json({**row, "seed": data["seed"]}) for row in data["rows"]]
        found.setdefault(data["run"], {})[int(data["seed"])] = rows
    return found
