"""Counts that a client may send of the server's answers, and the counted costs of the client."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from flwr.app import RecordDict
from torch import nn

from clients.data.card import DataCard
from clients.split.plan import SplitPlan
from clients.wire.records import metrics
from defenses.spec import parse
from strategies.split.evaluation import _fault_in, record_costs
from tests.simulations.split.test_run import split_experiment
from tests.strategies.stub_grid import Rows

CARD = DataCard(2, (1, 4, 4), (0.0,), (1.0,))
GOOD = {
    "true-positives": [2, 1], "false-positives": [1, 0], "false-negatives": [0, 1], "examples": [4], "loss": [1.5],
}  # fmt: skip


def reply(**changes: list[float]) -> Any:
    counts = {**GOOD, **{name.replace("_", "-"): values for name, values in changes.items()}}
    content = RecordDict({"metrics": metrics(counts)})  # type: ignore[arg-type]
    return SimpleNamespace(content=content)


def test_pairs_of_a_table_must_be_there_and_be_possible() -> None:
    table = replace(CARD, columns=("age",), cardinalities=(3,))
    assert _fault_in(reply(pairs=[2.5, 4.0]), table, 4) == ""
    assert "pairs is None" in _fault_in(reply(), table, 4)
    for impossible in ([4.5, 4.0], [1.0, 4.5]):
        assert "not those of 4 examples" in _fault_in(reply(pairs=impossible), table, 4)


def test_counts_of_as_many_examples_are_taken_and_those_that_cannot_be_are_named() -> None:
    assert _fault_in(reply(), CARD, 4) == ""
    changes: dict[str, Any]
    for changes, why in (
        ({"loss": [float("nan")]}, "loss is [nan], expected 1 numbers from 0"),
        ({"loss": [float("inf")]}, "loss is [inf]"), ({"loss": [-1.0]}, "loss is [-1.0]"),
        ({"loss": [1.0, 2.0]}, "loss is [1.0, 2.0]"), ({"true_positives": [2, 1, 0]}, "expected 2 numbers"),
        ({"examples": [5]}, "examples is [5], expected [4]"),
        ({"true_positives": [3, 1]}, "are not those of 4 examples"),
    ):  # fmt: skip
        assert why in _fault_in(reply(**changes), CARD, 4), changes


def test_multiply_accumulates_are_counted_by_hand_per_image(tmp_path: Path) -> None:
    """A shuffle among images is measured on two, and costs no multiplication: its numbers are those of one."""
    settings = split_experiment(tmp_path, train_edge=True)
    found = {}
    for text in ("", "PatchShuffle()", "BatchShuffle(k=0.4)"):
        plan, rows = SplitPlan.narrow(settings.plan(parse(text))), Rows()
        record_costs(plan, rows)
        found[text] = {name: rows.of(name)[0] for name in ("edge-macs", "edge-training-macs", "edge-parameters")}
    edge, _ = plan.build_halves()
    assert found[""]["edge-parameters"] == sum(parameter.numel() for parameter in edge.parameters())
    layers = [module for module in edge.modules() if isinstance(module, nn.Linear | nn.Conv2d)]
    assert found[""]["edge-macs"] >= sum(layer.weight.numel() for layer in layers) > 0
    for text in ("PatchShuffle()", "BatchShuffle(k=0.4)"):
        for name in ("edge-macs", "edge-training-macs"):
            assert found[text][name] == pytest.approx(found[""][name]), (text, name)
