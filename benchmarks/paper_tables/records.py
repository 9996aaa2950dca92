"""The small files of finished runs: the rows that claims read, one JSON file for each run and seed."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from entry import DEPLOYED, NULLS, Cell

from attacks.metrics.names import Role
from simulations.report.analysis.run import read_run
from simulations.report.studies.score import Score, merge
from simulations.run_folder.rows import Row

FOLDER = Path(__file__).resolve().parents[1] / "results" / "paper_tables"
KEPT = ("defense", "attack", "role", "metric", "reference", "cut", "round", "value", "ci_low", "ci_high", "n", "status")
"""Fields of a row that are kept."""
VERSIONS = ("fedveil", "flwr", "torch", "python")
"""Versions that are kept where the run's configuration has them."""

Records = Mapping[str, Mapping[int, Sequence[Row]]]
"""Name of a run -> seed -> rows."""


def chosen(rows: Sequence[Row], cell: Cell) -> list[Row]:
    """The rows of one seed that are the cell's number: one, or one for each client."""
    found = [row for row in rows if _fits(row, cell)]
    if cell.reference == DEPLOYED:
        deployed = [row for row in found if row.reference == "transformed"]
        found = deployed or [row for row in found if row.reference == "original"]
    rounds = [row.round for row in found]
    if not rounds:
        return []
    at = {"first": min(rounds), "last": max(rounds)}.get(str(cell.at), cell.at)
    return [row for row in found if row.round == at]


def _fits(row: Row, cell: Cell) -> bool:
    if (row.metric, row.defense, row.attack) != (cell.metric, cell.defense, cell.attack):
        return False
    null = row.role is Role.NULL_BASELINE
    if null != (cell.attack in NULLS) or row.role is Role.NULL_CONTROL:
        return False
    if cell.observation not in ("", row.card.observation):
        return False
    return cell.reference in (DEPLOYED, row.reference) and cell.cut in ("", row.cut)


def score(rows: Sequence[Row], cell: Cell) -> Score | None:
    """The cell's number from rows of one seed or several; None where there is none."""
    found = chosen(rows, cell)
    return merge(found) if found else None


def write(folder: Path, run: str, seed: int, cells: Sequence[Cell], to: Path = FOLDER) -> list[str]:
    """Write the small file of a finished run's folder, with the rows that cells read; cells without a row, in words."""
    read = read_run(folder)
    kept: dict[int, Row] = {}
    missing = []
    for cell in dict.fromkeys(cells):
        found = chosen(read.rows, cell)
        if not found:
            missing.append(f"{cell.metric} of {cell.attack or 'training'} under {cell.defense or 'no defence'}")
        kept |= {id(row): row for row in found}
    save(run, seed, list(kept.values()), read.config.get("versions") or {}, to)
    return missing


def save(run: str, seed: int, rows: Sequence[Row], versions: Mapping[str, str], to: Path) -> None:
    """Write rows of a run as its small file, a row a line."""
    lines = sorted({json.dumps(_kept(row)) for row in rows})
    shown = {name: text for name, text in sorted(versions.items()) if name in VERSIONS}
    head = f'{{"run": {json.dumps(run)}, "seed": {seed}, "versions": {json.dumps(shown)}, "rows": [\n'
    to.mkdir(parents=True, exist_ok=True)
    (to / f"{run}-seed{seed}.json").write_text(head + ",\n".join(lines) + "\n]}\n", encoding="utf-8")


def _kept(row: Row) -> dict[str, Any]:
    full = json.loads(row.to_json())
    observation = row.card.observation
    return {name: full[name] for name in KEPT} | ({"card": {"observation": observation}} if observation else {})


def read(folder: Path = FOLDER) -> dict[str, dict[int, list[Row]]]:
    """All small files of a folder."""
    found: dict[str, dict[int, list[Row]]] = {}
    for path in sorted(folder.glob("*.json")):
        data = json.loads(path.read_text(encoding="utf-8"))
        rows = [Row.from_json({**row, "seed": data["seed"]}) for row in data["rows"]]
        found.setdefault(data["run"], {})[int(data["seed"])] = rows
    return found
