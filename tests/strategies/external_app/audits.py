"""Runs of an audited app with quick attacks, their rows and their pages: what several tests of audits share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from flwr.app import ArrayRecord, ConfigRecord
from flwr.serverapp.strategy import FedAvg

from simulations.audited import audited
from tests.lines import read_lines
from tests.strategies.external_app.app import AppGrid, Net

EXACT = "Spear()"
LABELS = "LabelInference()"


def run(out: Path, app: Any, strategy: FedAvg | None = None, rounds: int = 1, **told: Any) -> list[dict[str, Any]]:
    config = told.pop("train_config", {"lr": 0.1})
    settings = {
        "workers": 0,
        "settings": {"batch-size": 2, "local-epochs": 1},
        "probe_attacks": LABELS,
        "update_attacks": LABELS,
        "probe_targets": 2,
        "rounds": range(1, rounds + 1),
        **told,
    }
    watched = audited(strategy or FedAvg(fraction_evaluate=0.0), out, Net, **settings)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        start = ArrayRecord(Net().state_dict())
    grid = app if isinstance(app, AppGrid) else AppGrid(app)
    watched.start(grid, start, num_rounds=rounds, train_config=ConfigRecord(config))
    return list(read_lines(out / "rows.jsonl"))


def attacked(rows: list[dict[str, Any]], observation: str) -> list[dict[str, Any]]:
    return [row for row in rows if row["attack"] and row["card"].get("observation") == observation]


def page_of(out: Path) -> str:
    return " ".join((out / "report.html").read_text(encoding="utf-8").split())


def node_of(partition: int) -> Any:
    """What stands for the context of a node."""
    return type("Node", (), {"node_config": {"partition-id": partition}})
