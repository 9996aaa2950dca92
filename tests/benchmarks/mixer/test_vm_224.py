"""The study of VisualMixer at 224 pixels: squares are distinct, the server has no attacked photograph, and counts are right."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import photo_squares
import pytest
import torch
import vm_224
from photo_squares import FILES, SIDE, faces, photograph, squares, tiles

from attacks.refinement.unshuffle import WindowMean
from defenses.pipeline import Pipeline
from defenses.spec import parse
from simulations.protect.recognised import Network


def distinct(images: torch.Tensor) -> int:
    return len(torch.unique(images.flatten(1), dim=0))


def test_tiles_do_not_overlap_and_one_part_is_the_central_square() -> None:
    """A picture of its own coordinates, so that each pixel is unlike all others."""
    down, across = torch.meshgrid(torch.arange(300.0), torch.arange(451.0), indexing="ij")
    photo = torch.stack([down / 300, across / 451, 0 * down])
    for parts, count in ((1, 1), (2, 6), (3, 12)):
        found = tiles(photo, parts)
        assert found.shape == (count, 3, SIDE, SIDE)
        assert distinct(found.permute(0, 2, 3, 1).reshape(-1, 3)[:, :, None]) == count * SIDE * SIDE
    middle = tiles(photo, 1)[0].mean((1, 2))
    torch.testing.assert_close(middle[:2], torch.tensor([0.5, 0.5]), atol=0.01, rtol=0)


def test_attacked_squares_are_of_photographs_that_the_server_does_not_have() -> None:
    pair = [squares(seed, 20) for seed in (0, 1)]
    quarters = {name: tiles(photograph(name), 2) for name in FILES}
    owners = [
        {name for name, own in quarters.items() if any(torch.equal(one, square) for one in own for square in of)}
        for of in (pair[0].attacked, pair[0].others, pair[1].attacked)
    ]
    assert [len(one) for one in owners] == [5, 5, 5]
    assert owners[0].isdisjoint(owners[1])
    assert owners[1] == owners[2], "the second seed attacks the other half"
    for own in pair:
        assert distinct(own.attacked) == len(own.attacked) == 20
        assert len(own.others) >= 75
    assert len(pair[0].whole) == len(FILES)


def test_faces_are_enlarged() -> None:
    found = faces()
    assert found.shape == (100, 1, SIDE, SIDE)
    assert distinct(found) == 100


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few squares of noise, few faces, and a network that answers by brightness."""
    drawn = torch.rand(12, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    own = photo_squares.Squares(drawn[:4], drawn[4:], drawn[:4], drawn[4:8], drawn[8:])
    monkeypatch.setattr(vm_224, "squares", lambda *_: own)
    monkeypatch.setattr(vm_224, "faces", lambda: drawn[:3, :1])
    monkeypatch.setattr(vm_224, "CANDIDATES", 12)

    class Brightest(torch.nn.Module):
        def forward(self, images: torch.Tensor) -> torch.Tensor:
            return -(torch.arange(5000) - 5000 * images.mean((1, 2, 3))[:, None]).abs()

    monkeypatch.setattr(vm_224, "load_network", lambda _: Network("net", Brightest(), (0.0,) * 3, (1.0,) * 3))


@pytest.mark.usefixtures("small")
def test_without_a_defence_all_is_recovered_identified_and_recognised() -> None:
    upload = vm_224.attacked(Pipeline(), 0, None, 4)
    assert (upload["n"], upload["recovered"]) == (4, 4)
    found = vm_224.shown(Pipeline(), 0, 4)
    assert (found["candidates"], found["identified"], found["faces"], found["identified-faces"]) == (12, 12, 3, 3)
    assert (found["answers"]["compared"], found["answers"]["first"]) == (8, 8)


@pytest.mark.usefixtures("small")
def test_shuffled_noise_is_not_recovered_and_keeps_its_brightness() -> None:
    pipeline = parse("VisualMixer(window_lower=64, window_upper=64)")
    upload, means = (vm_224.attacked(pipeline, 0, attack, 4) for attack in (None, WindowMean()))
    assert upload["recovered"] == means["recovered"] == 0
    assert means["psnr"] > upload["psnr"], "a mean lies nearer to noise than other noise"
    assert vm_224.shown(pipeline, 0, 4)["answers"]["first"] == 8, "a shuffle keeps the mean"


@pytest.mark.usefixtures("small")
def test_the_tables_have_every_guess_and_a_second_call_measures_nothing_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [
        "vm_224.py",
        "--seeds",
        "0",
        "--windows",
        "8",
        "16",
        "--squares",
        "4",
        "--sweeps",
        "2",
        "--iterations",
        "0",
    ]
    monkeypatch.setattr(sys, "argv", [*words, "--out", str(tmp_path / "kept.jsonl")])
    vm_224.main()
    printed = capsys.readouterr().out
    lines = [line for line in printed.splitlines() if line.startswith("| (8, 16): 8 |")]
    assert [line.split("|")[3].strip() for line in lines[:3]] == ["the copy", "WindowMean()", "Shredder(sweeps=2)"]
    assert len(lines) == 4
    kept = json.loads((tmp_path / "kept.jsonl").read_text().splitlines()[-1])["numbers"]
    assert f"{kept['identified']} of 12" in lines[3]
    for name in ("attacked", "shown"):
        monkeypatch.setattr(vm_224, name, lambda *_: pytest.fail("measured anew"))
    vm_224.main()
    assert capsys.readouterr().out == printed
