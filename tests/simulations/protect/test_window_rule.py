"""Windows of VisualMixer that follow a picture's size, and bounds that a user gives."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from clients.data.images import to_float
from defenses.images.visual_mixer import VisualMixer
from defenses.spec import parse
from simulations.protect.copies import protect_image
from simulations.protect.window_rule import LEAST, RULE, bounds_for, follows_size, for_size, self_contained
from tests.simulations.protect.commands import NOISE, protect


def pictures(folder: Path, *sizes: tuple[int, int]) -> Path:
    """Coloured noise of these widths and heights."""
    folder.mkdir()
    for at, (width, height) in enumerate(sizes):
        pixels = np.random.default_rng(at).integers(0, 256, (height, width, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{at}.png")
    return folder


def mixer(text: str, height: int, width: int) -> VisualMixer:
    (found,) = for_size(text, height, width).defenses
    assert isinstance(found, VisualMixer)
    return found


def test_at_the_papers_size_windows_are_the_papers() -> None:
    assert bounds_for(224) == (8, 56)
    assert VisualMixer(*bounds_for(224)).sizes(224, 224)[1:] == [16, 8]


@pytest.mark.parametrize("side", [28, 32, 63, 64, 113, 127, 225, 448, 600, 1411, 4000])
def test_the_share_of_the_side_is_kept_up_to_a_power_of_two_and_vfe_decides(side: int) -> None:
    lower, upper = bounds_for(side)
    assert 1 / 28 <= lower / side < 2 / 28 or lower == LEAST
    defense = VisualMixer(lower, upper)
    assert defense.sizes(side, side) == [4 * lower, 2 * lower, lower]
    assert defense.idle(side, side) == ""


@pytest.mark.parametrize("side", [1, 2, 7, 8, 100_000])
def test_every_side_has_bounds_that_the_defence_takes(side: int) -> None:
    lower, upper = bounds_for(side)
    assert lower >= LEAST
    VisualMixer(lower, upper).sizes(side, side)


def test_the_longer_side_decides() -> None:
    assert mixer("VisualMixer()", 100, 448) == mixer("VisualMixer()", 448, 448) == VisualMixer(16, 112)


@pytest.mark.parametrize(
    "text", ["VisualMixer(window_lower=4)", "VisualMixer(window_upper='auto')", "VisualMixer(2, 15)", "Blur()", ""]
)
def test_given_bounds_and_other_defences_stay_as_they_are(text: str) -> None:
    assert not follows_size(text)
    assert for_size(text, 500, 500) == parse(text)
    assert parse(self_contained(text)) == parse(text)


def test_other_settings_and_stages_are_kept_beside_the_rule() -> None:
    text = self_contained("Blur(std=2.0) | VisualMixer(density='sum', target_vfe=60)")
    assert text == "Blur(std=2.0) | VisualMixer(density='sum', target_vfe=60)"
    assert follows_size(text)
    blur, found = for_size(text, 32, 32).defenses
    assert found == VisualMixer(*bounds_for(32), density="sum", target_vfe=60)
    assert found.smallest == 8, "the target raises the smallest window"
    assert repr(blur) == "Blur(std=2.0)"


def test_each_copy_has_the_windows_of_its_size_and_everything_says_so(tmp_path: Path) -> None:
    folder, secret = pictures(tmp_path / "in", (224, 224), (224, 224), (40, 60)), tmp_path / "key"
    code, printed = protect(folder, tmp_path / "out", "--defense", "VisualMixer()", "--secret", secret, "--workers", 1)
    assert code == 0, printed
    lines = " ".join(printed.split())
    assert "3 of 3 pictures processed by VisualMixer();" in lines
    assert RULE in lines
    assert "2 pictures: windows of 8 to 16 of 224 pixels (4 to 7 % of the side)" in lines
    assert "1 picture: windows of 4 to 8 of 60 pixels (7 to 13 % of the side), as 15 to 30 of the paper's 224" in lines
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert (manifest["defense"], manifest["window_rule"]) == ("VisualMixer()", RULE)
    own = [one["defense"] for one in manifest["files"]]
    assert own == [
        *2 * ["VisualMixer(window_lower=8, window_upper=56)"],
        "VisualMixer(window_lower=4, window_upper=28)",
    ]
    assert manifest["files"][2]["windows"] == [
        "windows of 4 to 8 of 60 pixels (7 to 13 % of the side), as 15 to 30 of the paper's 224"
    ]
    again = ("--defense", "VisualMixer()", "--secret", secret, "--resume")
    assert protect(folder, tmp_path / "out", *again)[0] == 0, "the rule is part of what --resume compares"
    # The same copy as with these bounds by hand.
    image = to_float(torch.from_numpy(np.array(Image.open(folder / "2.png"))).permute(2, 0, 1))
    wanted = protect_image(parse(own[2]), image, secret.read_text().strip())
    made = to_float(torch.from_numpy(np.array(Image.open(tmp_path / "out" / "2.png"))).permute(2, 0, 1))
    torch.testing.assert_close(made, wanted, atol=1e-6, rtol=0)


def test_given_bounds_are_printed_with_their_share_and_without_a_rule(tmp_path: Path) -> None:
    folder = pictures(tmp_path / "in", (32, 32))
    known = ("--defense", "VisualMixer(window_lower=2, window_upper=16)")
    code, printed = protect(folder, tmp_path / "out", *known)
    assert code == 0, printed
    assert "windows of 2 to 8 of 32 pixels (6 to 25 % of the side), as 14 to 56 of the paper's 224" in " ".join(
        printed.split()
    )
    assert RULE not in " ".join(printed.split())
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert (manifest["window_rule"], manifest["files"][0]["defense"]) == ("", "")
    assert "windows of" not in protect(folder, tmp_path / "noise", "--defense", NOISE)[1]
