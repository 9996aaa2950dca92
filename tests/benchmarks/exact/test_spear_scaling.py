"""The script that measures SPEAR and SPEAR++: its updates, scores and table."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch

from attacks import SpearPlusPlus
from attacks.guesses import Reconstruction

sys.path.insert(0, str(Path(__file__).parents[3] / "benchmarks" / "exact"))
import spear_scaling
from spear_scaling import CELL, batch_of, network, scored, sent, table

CELL_OF_TEST: dict[str, Any] = {
    "data": "mnist-5k", "depth": 3, "width": 20, "batch": 2, "noise": 0.0, "steps": 1, "rate": 0.01, "single": False, "seed": 0,
}  # fmt: skip


def update(**changes: Any) -> torch.Tensor:
    cell = CELL_OF_TEST | changes
    images, labels = batch_of(cell["data"], cell["batch"], cell["seed"])
    return sent(network(784, cell["width"], cell["depth"], 0), images, labels, cell).update["1.weight"]


def test_updates_have_the_rank_of_the_batch_after_any_number_of_steps_and_full_rank_with_noise() -> None:
    def rank(**changes: Any) -> int:
        values = torch.linalg.svdvals(update(**changes).double())
        return int((values > 1e-9 * values[0]).sum())

    assert rank() == 2
    assert rank(steps=4) == 2
    assert rank(noise=0.01) == 20


def test_noise_has_the_size_that_is_stated() -> None:
    plain = update()
    noise = update(noise=0.1) - plain
    assert abs(float(noise.square().mean().sqrt() / plain.square().mean().sqrt()) - 0.1) < 0.01


def test_scores_count_exact_and_recovered_images_and_failures_as_neither() -> None:
    truth = torch.rand(3, 1, 4, 4, generator=torch.Generator().manual_seed(0))
    near = torch.stack([truth[0], (truth[1] - 0.01).abs(), 0.5 * truth[2]])
    found = scored(Reconstruction(near[[2, 0, 1]], torch.zeros(3)), truth)
    assert (found["exact"], found["recovered"]) == (1, 2)
    assert scored(Reconstruction.grey(3, (1, 4, 4), "why"), truth)["failure"] == "why"


def test_a_cell_is_measured_and_shown(monkeypatch: Any, tmp_path: Path, capsys: Any) -> None:
    file = tmp_path / "results.jsonl"
    sizes = ["--batches", "2", "--widths", "60", "--seeds", "0", "1", "--attacks", "SpearPlusPlus"]
    monkeypatch.setitem(spear_scaling.ATTACKS, "SpearPlusPlus", SpearPlusPlus(max_starts=1))
    monkeypatch.setattr(sys, "argv", ["x", str(file), *sizes])
    spear_scaling.main()
    before = file.read_text()
    spear_scaling.main()
    assert file.read_text() == before, "a known line was measured again"
    capsys.readouterr()
    monkeypatch.setattr(sys, "argv", ["x", str(file), "--table"])
    spear_scaling.main()
    shown = capsys.readouterr().out.splitlines()
    assert shown[0].startswith(f"| {CELL[0]} |")
    lines = [json.loads(line) for line in before.splitlines()]
    exact, recovered = (sum(one[name] for one in lines) for name in ("exact", "recovered"))
    assert exact >= 2
    assert f"| SpearPlusPlus | 0 1 | {exact} of 4 | {recovered} of 4 |" in shown[2]


def test_the_table_adds_over_seeds() -> None:
    line = {name: CELL_OF_TEST.get(name, "Spear") for name in CELL} | {"exact": 1, "recovered": 2, "seconds": 1.0}
    assert "| Spear | 0 1 | 2 of 4 | 4 of 4 | 0 of 2 | 1 |" in table([line | {"seed": 1}, line | {"seed": 0}])
