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
from tests.simulations.protect.commands import protect


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


def test_bounds_keep_their_share_of_the_side_up_to_a_power_of_two_and_vfe_decides() -> None:
    assert bounds_for(224) == (8, 56), "as in the paper"
    assert VisualMixer(*bounds_for(224)).sizes(224, 224)[1:] == [16, 8]
    for side in (28, 32, 63, 64, 113, 127, 225, 448, 600, 1411, 4000):
        lower, upper = bounds_for(side)
        assert 1 / 28 <= lower / side < 2 / 28 or lower == LEAST, side
        defense = VisualMixer(lower, upper)
        assert defense.sizes(side, side) == [4 * lower, 2 * lower, lower], side
        assert defense.idle(side, side) == "", side
    for side in (1, 2, 7, 8, 100_000):
        lower, upper = bounds_for(side)
        assert lower >= LEAST
        VisualMixer(lower, upper).sizes(side, side)
    # The longer side decides.
    assert mixer("VisualMixer()", 100, 448) == mixer("VisualMixer()", 448, 448) == VisualMixer(16, 112)


def test_given_bounds_and_other_defences_and_settings_stay_as_they_are() -> None:
    for text in ("VisualMixer(window_lower=4)", "VisualMixer(window_upper='auto')", "VisualMixer(2, 15)", "Blur()", ""):
        assert not follows_size(text)
        assert for_size(text, 500, 500) == parse(text)
        assert parse(self_contained(text)) == parse(text)
    text = "Blur(std=2.0) | VisualMixer(density='sum', target_vfe=60)"
    assert self_contained(text) == text
    assert follows_size(text)
    blur, found = for_size(text, 32, 32).defenses
    assert found == VisualMixer(*bounds_for(32), density="sum", target_vfe=60)
    assert found.smallest == 8, "the target raises the smallest window"
    assert repr(blur) == "Blur(std=2.0)"


def test_a_target_raises_bounds_where_they_would_leave_vfe_no_choice() -> None:
    for text, side, bounds in (
        ("VisualMixer(target_vfe=400)", 128, (16, 112)),  # the rule's (8, 56) would leave windows of 16 alone
        ("VisualMixer(target_vfe=400)", 64, (4, 28)),  # no bounds give this side two sizes from 16 on
        ("VisualMixer(target_vfe=2000)", 64, (64, 448)),  # no window under the rule's bound of 28 reaches it
        ("VisualMixer(target_vfe=400)", 600, (32, 224)),
        ("VisualMixer(target_vfe=0)", 64, (4, 28)),
    ):
        found = mixer(self_contained(text), side, side)
        assert (found.window_lower, found.window_upper) == bounds, (text, side)
        assert self_contained(text) == text.replace("target_vfe=0", "")
        assert bool(found.idle(side, side)) == (side == 64 and found.target_vfe > 0)
    for target in ("1e9", "'x'", "-1"):
        with pytest.raises(SpecError, match="target_vfe"):
            self_contained(f"VisualMixer(target_vfe={target})")


def test_windows_are_stated_with_their_share_and_where_they_are_cut_or_idle(tmp_path: Path) -> None:
    found = sized("VisualMixer()", 10, 10)
    assert found.windows == tuple(for_size("VisualMixer()", 10, 10).at_size(10, 10))
    (why,), (given,) = found.idle, sized("VisualMixer(2, 15)", 10, 10).idle
    assert (why.endswith(TOO_SMALL), given.endswith(ADVICE)) == (True, True)
    assert [bool(sized("VisualMixer()", side, side).idle) for side in (15, 16)] == [True, False]
    (wide,) = sized("VisualMixer()", 100, 4000).windows
    assert wide.startswith("windows of 256 to 512 of 4000 pixels (6 to 13 % of the side), as 14 to 29 of 224 in ")
    assert "only 100 pixels and cuts them" in wide
    assert "cuts" not in sized("VisualMixer()", 512, 4000).windows[0]
    manifest = Manifest(Order(tmp_path, tmp_path / "out", "VisualMixer()", "secret", 0, "in"))
    for at, side in enumerate([*4 * [224], *3 * [32], *2 * [64], 128, 128, 600]):
        manifest.done[str(at)] = Copy(str(at), str(at), windows=sized("VisualMixer()", side, side).windows)
    manifest.done["broken"] = Copy("broken", error="no picture")
    counts = [line.partition(":")[0] for line in manifest.windows]
    assert counts == ["4 pictures", "3 pictures", "2 pictures", "3 pictures of 2 other sizes"]


def test_each_copy_has_the_windows_of_its_size_and_the_manifest_says_so(tmp_path: Path) -> None:
    folder, secret, out = (
        pictures(tmp_path / "in", (224, 224), (224, 224), (40, 60)),
        tmp_path / "key",
        tmp_path / "out",
    )
    known = ("--defense", "VisualMixer()", "--secret", secret)
    code, printed = protect(folder, out, *known, "--workers", 1)
    assert code == 0, printed
    assert "2 pictures: windows of 8 to 16 of 224 pixels (4 to 7 % of the side)" in " ".join(printed.split())
    manifest = json.loads((out / "manifest.json").read_text())
    assert (manifest["defense"], manifest["window_rule"]) == ("VisualMixer()", RULE)
    own = [one["defense"] for one in manifest["files"]]
    assert own == [f"VisualMixer(window_lower={low}, window_upper={up})" for low, up in ((8, 56), (8, 56), (4, 28))]
    # The same copy as with these bounds by hand.
    image, made = (
        to_float(torch.from_numpy(np.array(Image.open(one / "2.png"))).permute(2, 0, 1)) for one in (folder, out)
    )
    torch.testing.assert_close(made, protect_image(parse(own[2]), image, secret.read_text().strip()), atol=1e-6, rtol=0)
    # A folder of an earlier version has no windows: they are added when it is resumed.
    old = manifest | {"files": [{key: one[key] for key in one if key != "windows"} for one in manifest["files"]]}
    (out / "manifest.json").write_text(json.dumps(old))
    assert protect(folder, out, *known, "--resume")[0] == 0, "the rule is part of what --resume compares"
    assert json.loads((out / "manifest.json").read_text())["files"] == manifest["files"]
    given = ("--defense", "VisualMixer(window_lower=2, window_upper=16)")
    assert RULE not in " ".join(protect(folder, tmp_path / "given", *given)[1].split())
    assert json.loads((tmp_path / "given" / "manifest.json").read_text())["window_rule"] == ""
