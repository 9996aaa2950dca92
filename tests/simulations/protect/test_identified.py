"""How ``fedveil protect`` measures whether copies still show their pictures, and what its warning suggests."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from typer.testing import CliRunner

from simulations.cli import app
from simulations.protect.copies import Copy, Order, copy
from simulations.protect.identified import GRID, Compared, Identified, compare, is_most, reduced, spaced
from simulations.protect.larger_windows import LEAST_PROBED, MOST_PROBED, advice, bounds, probes, suggest
from simulations.protect.window_rule import self_contained
from tests.simulations.protect.commands import NOISE


def scenes(folder: Path, count: int = 6, size: tuple[int, int] = (192, 128)) -> Path:
    """Pictures of a few large rectangles, which a person tells apart from afar."""
    folder.mkdir()
    for at in range(count):
        cells = np.random.default_rng(at).integers(0, 256, (4, 6, 3), dtype=np.uint8)
        Image.fromarray(cells).resize(size, Image.Resampling.NEAREST).save(folder / f"{at}.png")
    return folder


def protected(folder: Path, out: Path, defense: str) -> tuple[Order, list[Copy]]:
    order = Order(folder, out, self_contained(defense), "secret", 0, "")
    return order, [copy(order, path.name, path.name)[0] for path in sorted(folder.iterdir())]


def test_reduced_cells_are_means_of_their_pixels_and_names_are_spaced_evenly() -> None:
    image = torch.rand(3, 4 * GRID, 2 * GRID, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(reduced(image), image.view(3, GRID, 4, GRID, 2).mean((2, 4)))
    assert reduced(image[:1]).shape == (3, GRID, GRID)
    names = [f"{at:03d}" for at in range(250)]
    assert spaced(names, 100)[:3] == ["000", "002", "005"]
    assert len(set(spaced(names, 100))) == 100
    assert spaced(names[:5], 100) == names[:5]
    most = [is_most(found, of) for found, of in ((0, 0), (0, 1), (1, 1), (1, 2), (2, 3), (5, 10), (6, 10))]
    assert most == [False, False, True, False, True, False, True], "more than half"


def test_the_finding_names_the_number_of_pictures_and_the_chance() -> None:
    blank = torch.zeros(3, GRID, GRID)
    for count in (1, 3):
        some = tuple(Compared(str(at), (3, 9, 9), blank, blank) for at in range(count))
        told = Identified(some, frozenset(one.name for one in some)).finding
        assert told.startswith(f"{count} of {count} copies still show their picture")
        assert f"chance: 1 in {8 * count}" in told
        assert Identified(some).finding.startswith(f"0 of {count} copies, downsampled to 32x32, are closest to their ")


def test_small_windows_on_large_pictures_are_warned_of_and_the_suggestion_holds(tmp_path: Path) -> None:
    folder, tried = scenes(tmp_path / "in"), list[tuple[int, int]]()
    words = ["protect", str(folder), str(tmp_path / "json"), "--defense", "VisualMixer()", "--json"]
    done = CliRunner().invoke(app, words)
    told = json.loads(done.stdout)
    assert (told["identified"], told["of"]) == (6, 6)
    warnings = [line for line in done.stderr.splitlines() if line.startswith("warning: ")]
    assert warnings == [f"warning: {told['warning']}"]
    order, made = protected(folder, tmp_path / "out", "VisualMixer()")
    seen = compare(order, made)
    found = suggest(order, seen, lambda *at: tried.append(at))
    assert found is not None
    assert f"larger windows hide more, e.g. {found.pipeline} for 192 x 128 pixels: " in advice(order, seen)
    again = compare(*protected(folder, tmp_path / "again", str(found.pipeline)))
    assert not again.most
    assert len(again.names) == found.found, "the same secret makes the copies that were measured"
    # The count of tried pictures only rises, to a total that is known at the start.
    assert [done for done, _ in tried] == sorted({done for done, _ in tried})
    assert len({total for _, total in tried}) == 1
    assert tried[0][0] == 0 < tried[-1][0] < tried[-1][1]
    (folder / "1.png").write_text("no picture")
    assert len(compare(order, made).compared) == 5, "a source that has changed is not compared"
    assert compare(order, []).finding == ""


def test_where_no_windows_help_none_are_suggested(tmp_path: Path) -> None:
    assert list(bounds(224))[:3] == [(8, 16), (8, 32), (16, 64)]
    assert list(bounds(600))[-2:] == [(512, 1024), (1024, 2048)]
    assert all(lower <= upper for lower, upper in bounds(1))
    # Large pictures are probed in smaller numbers.
    assert [probes(size) for size in (12_000_000, 1_000_000, 600 * 400)] == [LEAST_PROBED, 8, MOST_PROBED]
    folder = scenes(tmp_path / "in", 2)
    for defense, told in (
        (NOISE, "use stronger settings or another defence"),
        (
            "VisualMixer(window_lower=1024, window_upper=2048)",
            "no larger windows of VisualMixer that were tried change that",
        ),
    ):
        order, done = protected(folder, tmp_path / told[:3], defense)
        assert advice(order, compare(order, done)) == told
