"""Windows of VisualMixer that follow a picture's size, and bounds that a user gives."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from clients.data.images import to_float
from defenses.images.visual_mixer import ADVICE, VisualMixer
from defenses.spec import SpecError, parse
from simulations.protect.copies import Copy, Order, protect_image
from simulations.protect.manifest import Manifest
from simulations.protect.printed import PRIVATE
from simulations.protect.window_rule import (
    LEAST,
    RULE,
    TOO_SMALL,
    bounds_for,
    follows_size,
    for_size,
    self_contained,
    sized,
)
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


def test_at_the_papers_size_the_smallest_windows_are_those_of_its_example() -> None:
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


@pytest.mark.parametrize(
    ("text", "side", "bounds"),
    [
        ("VisualMixer(target_vfe=400)", 128, (16, 112)),  # the rule's (8, 56) would leave windows of 16 alone
        ("VisualMixer(target_vfe=400)", 64, (4, 28)),  # no bounds give this side two sizes from 16 on
        ("VisualMixer(target_vfe=2000)", 64, (64, 448)),  # no window under the rule's bound of 28 reaches it
        ("VisualMixer(target_vfe=400)", 600, (32, 224)),
        ("VisualMixer(target_vfe=0)", 64, (4, 28)),
    ],
)
def test_a_target_raises_bounds_where_they_would_leave_vfe_no_choice(
    text: str, side: int, bounds: tuple[int, int]
) -> None:
    found = mixer(self_contained(text), side, side)
    assert (found.window_lower, found.window_upper) == bounds
    assert self_contained(text) == text.replace("target_vfe=0", "")
    assert bool(found.idle(side, side)) == (side == 64 and found.target_vfe > 0)


@pytest.mark.parametrize("target", ["1e9", "'x'", "-1"])
def test_a_target_that_no_bounds_reach_is_refused_at_once(target: str) -> None:
    with pytest.raises(SpecError, match="target_vfe"):
        self_contained(f"VisualMixer(target_vfe={target})")


def test_small_pictures_get_no_advice_about_bounds_that_nobody_gave() -> None:
    found = sized("VisualMixer()", 10, 10)
    assert (found.windows, found.defense) == (
        tuple(for_size("VisualMixer()", 10, 10).at_size(10, 10)),
        str(mixer("VisualMixer()", 10, 10)),
    )
    (why,) = found.idle
    assert why.endswith(f"whatever its VFE; {TOO_SMALL}")
    (given,) = sized("VisualMixer(2, 15)", 10, 10).idle
    assert given.endswith(ADVICE)
    assert sized("VisualMixer()", 15, 15).idle
    assert sized("VisualMixer()", 16, 16).idle == ()


def test_windows_that_the_shorter_side_cuts_are_stated_as_cut() -> None:
    (wide,) = sized("VisualMixer()", 100, 4000).windows
    assert wide == (
        "windows of 256 to 512 of 4000 pixels (6 to 13 % of the side), as 14 to 29 of 224 in VisualMixer's paper; the shorter "
        "side has only 100 pixels and cuts them"
    )
    assert "cuts" not in sized("VisualMixer()", 512, 4000).windows[0]


def test_sizes_beyond_the_most_frequent_are_counted(tmp_path: Path) -> None:
    manifest = Manifest(Order(tmp_path, tmp_path / "out", "VisualMixer()", "secret", 0, "in"))
    sides = [*4 * [224], *3 * [32], *2 * [64], 128, 128, 600]
    for at, side in enumerate(sides):
        manifest.done[str(at)] = Copy(str(at), str(at), windows=sized("VisualMixer()", side, side).windows)
    manifest.done["broken"] = Copy("broken", error="no picture")
    assert [line.partition(":")[0] for line in manifest.windows] == [
        *("4 pictures", "3 pictures", "2 pictures", "3 pictures of 2 other sizes"),
    ]
    assert manifest.windows[-1].endswith("manifest.json has the windows of each")


def test_copies_of_a_folder_without_windows_get_them_when_it_is_resumed(tmp_path: Path) -> None:
    folder, given = pictures(tmp_path / "in", (32, 32), (40, 60)), ("--defense", "VisualMixer()")
    assert protect(folder, tmp_path / "out", *given)[0] == 0
    path = tmp_path / "out" / "manifest.json"
    new = json.loads(path.read_text())
    old = new | {"files": [{key: value for key, value in one.items() if key != "windows"} for one in new["files"]]}
    path.write_text(json.dumps(old))
    code, printed = protect(folder, tmp_path / "out", *given, "--resume")
    assert (code, printed.count("1 picture: windows of")) == (0, 2), printed
    assert json.loads(path.read_text())["files"] == new["files"]


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
    assert RULE.count("Li et al., NDSS 2024") == 1, "which paper it follows"
    assert f"{PRIVATE}." in lines
    assert "2 pictures: windows of 8 to 16 of 224 pixels (4 to 7 % of the side)" in lines
    assert (
        "1 picture: windows of 4 to 8 of 60 pixels (7 to 13 % of the side), as 15 to 30 of 224 in VisualMixer's paper"
        in lines
    )
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert (manifest["defense"], manifest["window_rule"]) == ("VisualMixer()", RULE)
    own = [one["defense"] for one in manifest["files"]]
    assert own == [
        *2 * ["VisualMixer(window_lower=8, window_upper=56)"],
        "VisualMixer(window_lower=4, window_upper=28)",
    ]
    assert manifest["files"][2]["windows"] == [
        "windows of 4 to 8 of 60 pixels (7 to 13 % of the side), as 15 to 30 of 224 in VisualMixer's paper"
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
    assert (
        "windows of 2 to 8 of 32 pixels (6 to 25 % of the side), as 14 to 56 of 224 in VisualMixer's paper"
        in " ".join(printed.split())
    )
    assert RULE not in " ".join(printed.split())
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert (manifest["window_rule"], manifest["files"][0]["defense"]) == ("", "")
    assert "windows of" not in protect(folder, tmp_path / "noise", "--defense", NOISE)[1]
