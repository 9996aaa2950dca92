"""The map of what leaks: its networks, its updates, its counts, and what it makes of its lines."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import leak_map
import leak_picture
import pytest
import torch
from leak_networks import BASE, NETWORKS, Network, Skip
from paired_guesses import CEILING
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional as F

SENT = NETWORKS["BatchNorm, train, sent"]


def line(network: str, column: str, seed: int, gains: list[float], recovered: list[float]) -> dict[str, Any]:
    """As the script writes it."""
    psnr = [10.0 + gain for gain in gains]
    about = {"network": network, "column": column, "seed": seed, "n": len(gains)}
    return {**about, "psnr": psnr, "mean": [10.0] * len(gains), "recovered": recovered}


@pytest.mark.parametrize("name", NETWORKS)
def test_every_network_is_what_it_is_called(name: str) -> None:
    network = NETWORKS[name]
    model = network.build((3, 32, 32), 8, seed=0)
    assert model(torch.rand(2, 3, 32, 32)).shape == (2, 8)
    kinds = [type(module) for module in model.modules()]
    norms: dict[type[nn.Module], int] = {nn.BatchNorm2d: 0, nn.GroupNorm: 0}
    if network.norm != "none":
        norms[nn.BatchNorm2d if network.norm == "batch" else nn.GroupNorm] = network.depth
    assert {kind: kinds.count(kind) for kind in norms} == norms
    assert {module.num_groups for module in model.modules() if isinstance(module, nn.GroupNorm)} == (
        {"group": {4}, "layer": {1}}.get(network.norm, set())
    )
    convolutions = [module for module in model.modules() if isinstance(module, nn.Conv2d)]
    assert [one.out_channels for one in convolutions] == [network.width] * network.depth
    assert [one.stride[0] for one in convolutions[:2]] == [2 if network.pooling == "strided" else 1] * 2
    assert kinds.count(nn.MaxPool2d) == (2 if network.pooling == "max" else 0)
    assert kinds.count(nn.AvgPool2d) == (2 if network.pooling == "average" else 0)
    assert kinds.count(Skip) == (network.depth - 2 if network.skip else 0)
    activation = {"relu": nn.ReLU, "gelu": nn.GELU, "sigmoid": nn.Sigmoid}[network.activation]
    assert kinds.count(activation) == network.depth


def test_the_seed_alone_draws_the_weights() -> None:
    first, again, other = (BASE.build((3, 32, 32), 8, seed) for seed in (0, 0, 1))
    assert torch.equal(first[0][0].weight, again[0][0].weight)  # type: ignore[index, arg-type]
    assert not torch.equal(first[0][0].weight, other[0][0].weight)  # type: ignore[index, arg-type]


def test_one_step_sends_the_gradient() -> None:
    cell = leak_map.Cell(BASE, "4", 0, 4)
    (seen,) = cell.seen
    assert (seen.local_steps, seen.batch_size, seen.num_examples) == (1, 4, 4)
    assert seen.labels is not None
    loss = F.cross_entropy(cell.model(cell.normalised(cell.truth)), seen.labels)
    gradient = torch.autograd.grad(loss, list(cell.model.parameters()))
    for name, value in zip(dict(cell.model.named_parameters()), gradient, strict=True):
        torch.testing.assert_close(seen.gradient()[name], value, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize(("column", "size", "steps"), [("1 round", 1, 2), ("4 round", 2, 4)])
def test_a_round_takes_two_passes_in_halves(column: str, size: int, steps: int) -> None:
    seen = leak_map.Cell(BASE, column, 0, 4).seen
    assert {(one.batch_size, one.local_steps) for one in seen} == {(size, steps)}


def test_running_averages_are_sent_where_the_row_says_so() -> None:
    sent, kept = (
        leak_map.Cell(NETWORKS[f"BatchNorm, train, {name}"], "1", 0, 1).seen[0] for name in ("sent", "not sent")
    )
    assert sent.train_mode
    assert kept.train_mode
    assert len(sent.update) - len(kept.update) == 2 * SENT.depth
    assert sorted(kept.update) == sorted(name for name, _ in sent.model.named_parameters())


def test_measured_averages_are_those_of_training_images() -> None:
    cell = leak_map.Cell(NETWORKS["BatchNorm, eval, measured"], "1", 0, 1)
    convolution, norm = cell.model[0][0], cell.model[0][1]  # type: ignore[index]
    assert isinstance(norm, nn.BatchNorm2d)
    assert norm.running_mean is not None
    assert not norm.training
    with torch.no_grad():
        entered: Tensor = convolution(cell.normalised(leak_map.to_float(cell.card.train.images)))
    torch.testing.assert_close(norm.running_mean, entered.mean((0, 2, 3)), rtol=1e-4, atol=1e-5)
    assert norm.momentum == nn.BatchNorm2d(1).momentum


def test_the_originals_are_recovered_and_the_mean_image_is_not() -> None:
    cell = leak_map.Cell(BASE, "4", 0, 8)
    swapped = [batch.flip(0) for batch in cell.truth.split(4)]
    found = cell.scores(swapped)
    assert found["recovered"] == found["identified"] == [1.0] * 8
    assert found["psnr"] == [CEILING] * 8
    nothing = cell.scores([cell.mean_image.expand(4, -1, -1, -1)] * 2)
    assert nothing["recovered"] == [0.0] * 8
    assert nothing["psnr"] == pytest.approx(nothing["mean"])


def test_a_sharp_but_wrong_guess_is_not_recovered() -> None:
    cell = leak_map.Cell(BASE, "1", 0, 4)
    found = cell.scores(list(cell.others[:4].split(1)))
    assert found["identified"] == found["recovered"] == [0.0] * 4


def test_the_study_is_taken_up_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    out, picture = tmp_path / "lines.jsonl", tmp_path / "map.png"
    order = ["leak_map.py", "--networks", "base", "BatchNorm, train, sent", "--columns", "1", "1 round"]
    order += ["--seeds", "0", "--images", "2", "--iterations", "2", "--out", str(out), "--picture", str(picture)]
    monkeypatch.setattr(sys, "argv", order)
    leak_map.main()
    first = out.read_text()
    lines = [json.loads(one) for one in first.splitlines()]
    assert [(one["network"], one["column"], one["n"]) for one in lines] == [
        ("base", "1", 2),
        ("BatchNorm, train, sent", "1", 2),
        ("base", "1 round", 2),
        ("BatchNorm, train, sent", "1 round", 2),
    ]
    assert all(len(one[key]) == 2 for one in lines for key in ("psnr", "mean", "identified", "recovered"))
    shown = capsys.readouterr().out
    leak_map.main()
    assert out.read_text() == first
    assert capsys.readouterr().out == shown
    assert picture.is_file()


@pytest.mark.parametrize(
    "changed",
    [["--auxiliary"], ["--iterations", "3"], ["--images", "3"], ["--attack", "InvertingGradients(max_images=3)"]],
)
def test_other_settings_are_measured_and_shown_apart(
    changed: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    out = tmp_path / "lines.jsonl"
    order = [
        "leak_map.py",
        "--networks",
        "base",
        "--columns",
        "1",
        "--seeds",
        "0",
        "--images",
        "2",
        "--iterations",
        "2",
    ]
    order += ["--out", str(out)]
    monkeypatch.setattr(sys, "argv", order)
    leak_map.main()
    first = capsys.readouterr().out
    monkeypatch.setattr(sys, "argv", order + changed)
    leak_map.main()
    monkeypatch.setattr(sys, "argv", order)
    capsys.readouterr()
    leak_map.main()
    assert len(out.read_text().splitlines()) == 2
    assert capsys.readouterr().out == first


def test_lines_without_settings_count_as_measured_with_the_defaults(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    out = tmp_path / "lines.jsonl"
    old = line("base", "1", 0, [1.0] * 11, [0.0] * 11) | {"attack": leak_map.ATTACK}
    out.write_text(json.dumps(old) + "\n")
    known = ["leak_map.py", "--networks", "base", "--columns", "1", "--seeds", "0", "--out", str(out)]
    monkeypatch.setattr(sys, "argv", known)
    leak_map.main()
    assert len(out.read_text().splitlines()) == 1
    assert "| base | +1.0" in capsys.readouterr().out


def test_tables_put_the_seeds_together() -> None:
    lines = [line("b", "1", 1, [3.0, 5.0], [0.0, 1.0]), line("b", "1", 0, [1.0, 3.0], [0.0, 0.0])]
    lines.append(line("base", "1", 1, [1.0, 4.0], [0.0, 0.0]))
    text = leak_picture.printed(lines, ["base", "a", "b"], ["1", "1 round"])
    assert "| network | 1, one step |" in text
    assert "round" not in text  # Columns without lines are left out.
    assert "| a | - |" in text
    assert "| b | +3.0 ± 2.6 (+2.0, +4.0) |" in text  # t(0.975, 3) = 3.182, std = 1.633, n = 4.
    assert "| b | 1 of 4 (0, 1) |" in text
    assert "| b | +1.5 ± 6.4 |" in text  # Of seed 1 alone: +2 and +1; t(0.975, 1) = 12.706, std = 0.707, n = 2.


def test_the_picture_is_1000_pixels_wide_and_below_200_kb(tmp_path: Path) -> None:
    path = tmp_path / "map.png"
    lines = [line(name, "1", 0, [4.0, -2.0], [1.0, 0.0]) for name in list(NETWORKS)[1:]]
    leak_picture.draw(lines, list(NETWORKS), list(leak_map.COLUMNS), path)
    with Image.open(path) as picture:
        assert picture.width == 1000
    assert path.stat().st_size < 200_000


def test_a_row_differs_from_the_base_in_what_it_names() -> None:
    changed = {name: network for name, network in NETWORKS.items() if network != BASE}
    assert len(set(changed.values())) == len(changed) == len(NETWORKS) - 1
    assert NETWORKS["depth 5, skips"] == replace(NETWORKS["depth 5"], skip=True)
    assert NETWORKS["base"] == Network()
