"""The report says how many windows of each size VisualMixer used and their VFE, and warns where one size does all the work."""

from __future__ import annotations

import html
from pathlib import Path
from typing import Any

import pytest

from simulations.report import write_report
from simulations.report.analysis.windows import WindowCounts, window_counts
from simulations.report.studies.study import split
from simulations.run_folder.rows import Row
from tests.simulations.report.report_run import CONFIG, PIPELINES, Page, demo_rows, row, write_run

MIXER = PIPELINES[1]


def counted(
    windows: dict[int, int], images: int = 240, vfe: tuple[float, float] | None = None, **given: Any
) -> list[dict[str, Any]]:
    numbers: dict[str, float] = {"counted-images": images} | {
        f"windows-of-{size}": number for size, number in windows.items()
    }
    numbers |= {} if vfe is None else dict(zip(("vfe-sum-before", "vfe-sum-after"), vfe, strict=True))
    return [row(defense=MIXER, metric=name, value=number, n=4, **given) for name, number in numbers.items()]


def page(directory: Path, windows: dict[int, int], vfe: tuple[float, float] | None = None) -> Page:
    run = write_run(directory, rows=[*demo_rows(), *counted(windows, vfe=vfe)])
    return Page(write_report(run).read_text(encoding="utf-8"))


def test_counts_and_shares_of_the_area_are_shown(tmp_path: Path) -> None:
    text = " ".join(page(tmp_path, {8: 10, 4: 20, 2: 80}).text.split())
    assert (
        "in 240 training images: 10 of side 8 (50% of the area), 20 of side 4 (25% of the area), 80 of side 2 (25% of the area)"
        in text
    )
    assert "one window size" not in text
    assert "windows-of-8" not in text  # not among the numbers without a place


def test_vfe_before_and_after_is_the_mean_over_windows(tmp_path: Path) -> None:
    """110 windows in all; no other table lists the sums."""
    text = " ".join(page(tmp_path, {8: 10, 4: 20, 2: 80}, vfe=(66.0, 2090.0)).text.split())
    assert "VFE of such a window over twice the variance of its pixels, mean: 0.6 before, 19 after" in text
    assert "vfe-sum" not in text


def test_the_orders_of_an_image_are_a_power_of_ten(tmp_path: Path) -> None:
    known = row(defense=MIXER, metric="log10-keys", value=240 * 213.13, n=4)
    run = write_run(tmp_path, rows=[*demo_rows(), *counted({8: 10}), known])
    text = " ".join(Page(write_report(run).read_text(encoding="utf-8")).text.split())
    assert "orders of an image, mean of the logarithms: 1.3 \N{MULTIPLICATION SIGN} 10²¹³" in text
    assert "log10-keys" not in text


def test_runs_that_did_not_tell_vfe_and_flat_images_have_none(tmp_path: Path) -> None:
    assert "VFE of such" not in page(tmp_path, {8: 10}).text
    assert WindowCounts(3, {4: 0}, (0.0, 0.0)).vfe_text == ""


@pytest.mark.parametrize("windows", [{4: 100}, {4: 0, 2: 77}, {4: 3, 2: 500}])
def test_one_size_is_warned_of(tmp_path: Path, windows: dict[int, int]) -> None:
    assert "one window size" in " ".join(page(tmp_path, windows).text.split())


def test_nothing_moves_in_flat_images() -> None:
    flat = WindowCounts(3, {4: 0, 2: 0})
    assert flat.shares == {}
    assert flat.caveat == ""
    assert flat.text.endswith("none")


def test_one_seed_is_shown_and_pipelines_without_counts_have_none() -> None:
    rows = [*counted({4: 1}, seed=1, vfe=(1, 2)), *counted({8: 7, 2: 9}, seed=0, round=3, vfe=(3, 4))]
    (study,) = split([Row.from_json(one) for one in [*rows, *demo_rows()]], PIPELINES)
    assert window_counts(study, MIXER) == WindowCounts(240, {8: 7, 2: 9}, (3, 4))
    assert window_counts(study, "") is None


def test_the_headline_relates_the_windows_to_the_papers(tmp_path: Path) -> None:
    words = "windows of 2 to 8 of 32 pixels (6 to 25 % of the side), as 14 to 56 of 224 in VisualMixer's paper"
    for at, found in enumerate(([words], [], "of another version", None)):
        known = {**CONFIG, "defenses": {MIXER: {"adaptive_attacks": [], "at_size": found}}}
        whole = write_report(write_run(tmp_path / str(at), config=known)).read_text(encoding="utf-8")
        headline = html.unescape(whole.partition('<section id="headline')[2].partition("</section>")[0])
        assert (words in headline) == (found == [words])
        assert "of another version" not in headline
