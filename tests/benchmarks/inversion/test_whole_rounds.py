"""The script that attacks whole rounds: which lines are taken up again, which are shown together, and what it adds to attacks."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parents[3] / "benchmarks" / "inversion"))
import whole_rounds
from inversion_variants import Flat, FlatSurrogateMatching
from leak_networks import NETWORKS
from peer_strength import ours

from attacks import SurrogateMatching

CASE = "convnet:train:photos:1:2:1:0.01"


def run(out: Path, monkeypatch: pytest.MonkeyPatch, *changed: str) -> int:
    """The number of lines after a run with changed settings."""
    order = ["x", "--cases", CASE, "--images", "1", "--iterations", "1", "--out", str(out), *changed]
    monkeypatch.setattr(sys, "argv", order)
    whole_rounds.main()
    return len(out.read_text().splitlines())


def test_runs_with_other_settings_are_measured_and_shown_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    out = tmp_path / "lines.jsonl"
    assert run(out, monkeypatch) == 2
    assert run(out, monkeypatch) == 2
    assert run(out, monkeypatch, "--auxiliary") == 4
    assert run(out, monkeypatch, "--no-averages") == 6
    shown = whole_rounds.shown([json.loads(line) for line in out.read_text().splitlines()])
    for case in (CASE, f"{CASE}, no averages", f"{CASE}, training split"):
        assert shown.count(f"| {case} |") == 2


def test_lines_that_name_no_split_are_of_the_test_split(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "lines.jsonl"
    run(out, monkeypatch)
    old = [json.loads(line) for line in out.read_text().splitlines()]
    for line in old:
        del line["auxiliary"]
    out.write_text("".join(json.dumps(line) + "\n" for line in old))
    assert run(out, monkeypatch) == 2
    assert "training split" not in whole_rounds.shown(old)


def test_networks_of_the_leak_map_are_those_of_the_map() -> None:
    cell = whole_rounds.Rounds("depth 2:none:photos:2:2:1:0.05", 3, 2, auxiliary=False)
    expected = NETWORKS["depth 2"].build((3, 32, 32), cell.num_classes, 3).state_dict()
    assert all(torch.equal(value, expected[name]) for name, value in cell.model.state_dict().items())
    (seen,) = cell.seen
    assert (seen.local_steps, seen.num_examples, seen.batch_size) == (4, 2, 1)


def test_gradient_regularisation_of_a_quadratic_is_its_formula() -> None:
    """Of u' A u / 2 the gradient is A u, and that of its norm is A A u / |A u|."""
    curvature = torch.tensor([[2.0, 1.0], [1.0, 3.0]], dtype=torch.float64)

    class Quadratic:
        def __call__(self, unknowns: Tensor, trials: Tensor) -> tuple[Tensor, Tensor]:
            return (unknowns @ curvature * unknowns).sum(1) / 2, unknowns @ curvature

    class FlatQuadratic(Flat, Quadratic):
        radius = 0.7
        share = 0.25

    rows = torch.tensor([[1.0, -2.0], [0.5, 4.0]], dtype=torch.float64)
    losses, found = FlatQuadratic()(rows, torch.arange(2))
    expected, plain = Quadratic()(rows, torch.arange(2))
    torch.testing.assert_close(losses, expected)
    torch.testing.assert_close(found, plain + 0.7 * 0.25 * plain @ curvature / plain.norm(dim=1, keepdim=True))


def test_gradient_regularisation_acts_on_whole_rounds_by_its_radius() -> None:
    cell = whole_rounds.Rounds("width 8:none:photos:1:2:1:0.05", 0, 1, auxiliary=False)
    plain, none, some = (
        ours(attack, cell, 4, 0)[0]
        for attack in (SurrogateMatching(), FlatSurrogateMatching(radius=0.0), FlatSurrogateMatching(radius=5.0))
    )
    torch.testing.assert_close(none, plain)
    assert not torch.allclose(some, plain)
