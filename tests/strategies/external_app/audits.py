"""Runs of an audited app with quick attacks, their rows and their pages: what several tests of audits share."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from flwr.app import ArrayRecord, ConfigRecord
from flwr.serverapp.strategy import FedAvg, Result, Strategy
from torch import nn

from simulations.audited import audited
from tests.lines import read_lines
from tests.strategies.external_app.app import AppGrid, Net

EXACT = "SpearPlusPlus()"
LABELS = "LabelInference()"


def start(model: Callable[[], nn.Module] = Net) -> ArrayRecord:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return ArrayRecord(model().state_dict())


def started(
    out: Path, app: Any, strategy: Strategy | None = None, rounds: int = 1, model: Callable[[], nn.Module] = Net, **told: Any
) -> Result:  # fmt: skip
    """Result of an audited strategy that begins with weights of ``Net`` or of ``begins``; ``told`` goes to ``audited``."""
    config, begins = told.pop("train_config", {"lr": 0.1}), told.pop("begins", Net)
    settings: dict[str, Any] = {
        "workers": 0, "probe_attacks": LABELS, "update_attacks": LABELS,
        "probe_targets": 2, "rounds": range(1, rounds + 1), **told,
    }  # fmt: skip
    # Flower's default waits for two nodes.
    plain = FedAvg(fraction_evaluate=0.0, min_train_nodes=1, min_available_nodes=1)
    watched = audited(strategy or plain, out, model, **settings)
    grid: Any = app if isinstance(app, AppGrid) else AppGrid(app)
    return watched.start(grid, start(begins), num_rounds=rounds, train_config=ConfigRecord(config))


def run(out: Path, app: Any, *given: Any, **told: Any) -> list[dict[str, Any]]:
    started(out, app, *given, **told)
    return list(read_lines(out / "rows.jsonl"))


def attacked(rows: list[dict[str, Any]], observation: str) -> list[dict[str, Any]]:
    return [row for row in rows if row["attack"] and row["card"].get("observation") == observation]


def page_of(out: Path) -> str:
    return " ".join((out / "report.html").read_text(encoding="utf-8").split())


def node_of(partition: int) -> Any:
    return type("Node", (), {"node_config": {"partition-id": partition}})
