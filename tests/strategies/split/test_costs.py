"""The client's costs of split learning are those of one image, whatever is measured."""

from pathlib import Path

import pytest
from torch import nn

from clients.split.plan import SplitPlan
from defenses.spec import parse
from strategies.split.evaluation import record_costs
from tests.simulations.split.test_run import split_experiment
from tests.strategies.stub_grid import Rows


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
