"""How ``fedveil protect`` measures whether copies still show their pictures, and what its warning suggests."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

from simulations.cli import app
from simulations.protect.copies import Copy, Order, copy
from simulations.protect.identified import GRID, Compared, Identified, compare, is_most, reduced, spaced
from simulations.protect.larger_windows import LEAST_PROBED, MOST_PROBED, advice, bounds, probes, suggest
from simulations.protect.window_rule import self_contained
from tests.simulations.protect.commands import NOISE, protect


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


def test_reduced_cells_are_means_of_their_pixels() -> None:
    image = torch.rand(3, 4 * GRID, 2 * GRID, generator=torch.Generator().manual_seed(0))
    wanted = image.view(3, GRID, 4, GRID, 2).mean((2, 4))
    torch.testing.assert_close(reduced(image), wanted)
    assert reduced(image[:1]).shape == (3, GRID, GRID)


def test_most_is_more_than_half() -> None:
    assert [is_most(found, of) for found, of in ((0, 0), (0, 1), (1, 1), (1, 2), (2, 3), (5, 10), (6, 10))] == [
        False, False, True, False, True, False, True,
    ]  # fmt: skip


def test_compared_names_are_spaced_evenly() -> None:
    names = [f"{at:03d}" for at in range(250)]
    assert spaced(names, 100)[:3] == ["000", "002", "005"]
    assert len(set(spaced(names, 100))) == 100
    assert spaced(names[:5], 100) == names[:5]


def test_small_windows_on_large_pictures_are_warned_of_and_the_suggestion_holds(tmp_path: Path) -> None:
    folder = scenes(tmp_path / "in")
    order, done = protected(folder, tmp_path / "out", "VisualMixer()")
    seen = compare(order, done)
    assert seen.finding.startswith("6 of 6 copies still show their picture: downsampled to 32x32, each is closest to ")
    found = suggest(order, seen)
    assert found is not None
    assert found.size == "192 x 128"
    again = compare(*protected(folder, tmp_path / "again", str(found.pipeline)))
    assert not again.most
    assert len(again.names) == found.found, "the same secret makes the copies that were measured"
    assert f"larger windows hide more, e.g. {found.pipeline} for 192 x 128 pixels: " in advice(order, seen)


def test_the_search_for_larger_windows_shows_how_many_pictures_it_has_tried(tmp_path: Path) -> None:
    folder, seen = scenes(tmp_path / "in"), list[tuple[int, int]]()
    order, done = protected(folder, tmp_path / "made", "VisualMixer()")
    assert suggest(order, compare(order, done), lambda *at: seen.append(at))
    assert [done for done, _ in seen] == sorted({done for done, _ in seen}), "the count only rises"
    assert len({total for _, total in seen}) == 1
    assert seen[0][0] == 0
    assert 0 < seen[-1][0] < seen[-1][1]
    code, output = protect(folder, tmp_path / "out", "--defense", "VisualMixer()")
    assert code == 0
    assert re.search(
        r"6 of 6 pictures processed by VisualMixer\(.*?\); 6 of 6 copies still show their picture\b",
        " ".join(output.split()),
    )
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert (manifest["identified"], manifest["compared"]) == (6, 6)
    assert manifest["finding"].startswith("6 of 6 copies still show their picture: ")
    assert f"trying larger windows: 0 of {seen[0][1]}" in output
    assert "trying larger" not in protect(folder, tmp_path / "quiet", "--defense", "VisualMixer()", "--quiet")[1]


def test_where_no_windows_help_none_are_suggested(tmp_path: Path) -> None:
    folder = scenes(tmp_path / "in", 2)
    order, done = protected(folder, tmp_path / "out", NOISE)
    assert advice(order, compare(order, done)) == "use stronger settings or another defence"
    order, done = protected(folder, tmp_path / "whole", "VisualMixer(window_lower=1024, window_upper=2048)")
    assert suggest(order, compare(order, done)) is None, "there are no larger windows"
    assert advice(order, compare(order, done)) == "no larger windows of VisualMixer that were tried change that"


def test_a_source_that_has_changed_is_not_compared(tmp_path: Path) -> None:
    folder = scenes(tmp_path / "in", 3)
    order, done = protected(folder, tmp_path / "out", NOISE)
    (folder / "1.png").write_text("no picture")
    assert [one.name for one in compare(order, done).compared] == ["0.png", "2.png"]
    assert compare(order, []).finding == ""


def test_bounds_grow_from_those_of_the_paper_to_the_whole_picture() -> None:
    assert list(bounds(224))[:3] == [(8, 16), (8, 32), (16, 64)]
    assert list(bounds(600))[-2:] == [(512, 1024), (1024, 2048)]
    assert all(lower <= upper for lower, upper in bounds(1))


def test_large_pictures_are_probed_in_smaller_numbers() -> None:
    assert probes(12_000_000) == LEAST_PROBED
    assert probes(32 * 32) == MOST_PROBED
    assert probes(600 * 400) == MOST_PROBED
    assert probes(1_000_000) == 8


@pytest.mark.parametrize("count", [1, 3])
def test_the_finding_names_the_number_of_pictures_and_the_chance(count: int) -> None:
    blank = torch.zeros(3, GRID, GRID)
    some = tuple(Compared(str(at), (3, 9, 9), blank, blank) for at in range(count))
    told = Identified(some, frozenset(one.name for one in some)).finding
    assert told.startswith(f"{count} of {count} copies still show their picture")
    assert f"chance: 1 in {8 * count}" in told
    none = Identified(some).finding
    assert none.startswith(f"0 of {count} copies, downsampled to 32x32, are closest to their ")


def test_the_terminal_and_json_warn_and_large_windows_are_not_warned_of(tmp_path: Path) -> None:
    folder = scenes(tmp_path / "in")
    words = ["protect", str(folder), str(tmp_path / "out"), "--defense", "VisualMixer()", "--json"]
    done = CliRunner().invoke(app, words)
    found = json.loads(done.stdout)
    assert (found["identified"], found["of"]) == (6, 6)
    lines = [line for line in done.stderr.splitlines() if line.startswith("warning: ")]
    assert lines == [f"warning: {found['warning']}"]
    code, told = protect(folder, tmp_path / "hid", "--defense", "VisualMixer(window_lower=256, window_upper=512)")
    assert code == 0
    assert "warning" not in told
    assert "of 6 copies, downsampled to 32x32, are closest to their own original" in told


def test_a_new_secret_is_told_and_a_known_one_is_not(tmp_path: Path) -> None:
    folder, secret = scenes(tmp_path / "in", 2), tmp_path / "keys" / "mine"
    known = ("--defense", NOISE, "--secret", secret)
    line = f"a new secret was written to {secret}; copies made with another secret differ"
    assert protect(folder, tmp_path / "one", *known)[1].splitlines().count(line) == 1
    assert "a new secret" not in protect(folder, tmp_path / "two", *known)[1]
