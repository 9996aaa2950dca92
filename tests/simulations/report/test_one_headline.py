"""The page of a real audit: sentence, verdict, table, chart and picture are of one attack, and hold one count."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path

import pytest
import torch

import simulations
from simulations.compare.groups import grouped
from simulations.compare.page import write_comparison
from simulations.report.analysis.conclusion import conclusion, verdicts
from simulations.report.analysis.line import Line
from simulations.report.analysis.readability import Readability
from simulations.report.analysis.run import read_run
from simulations.report.analysis.sentences import sentence
from simulations.report.studies.cell import Cell
from simulations.report.studies.recovery import LEAST_GAIN
from simulations.report.text import short_names, signed
from strategies.audit.score_rows import rounded_gain
from tests.simulations.report.report_run import Page, words

pytestmark = pytest.mark.slow

DEFENSES = "GaussianNoise(std=0.05, per='step'); GaussianNoise(std=30.0, per='step')"
ATTACKS = "CocktailParty(); InvertingGradients(iterations=10)"
Told = tuple[Line, Cell, str]


class OneLayer(torch.nn.Sequential):
    """Its gradient of one image holds the image, which noise hides more or less of."""

    def __init__(self, num_classes: int) -> None:
        super().__init__(torch.nn.Flatten(), torch.nn.Linear(784, num_classes))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return simulations.audit(
        out=tmp_path_factory.mktemp("one") / "run", dataset="mnist-5k", model=OneLayer, train_limit=400, test_limit=60,
        rounds=1, defenses=DEFENSES, probe_attacks=ATTACKS, update_attacks="", attack_workers=0, adaptive=False,
    ).directory  # fmt: skip


@pytest.fixture(scope="module")
def lines(run: Path) -> list[Told]:
    """Each line, its strongest attack, and the count of images that this recovered."""
    read = read_run(run)
    found = []
    for line in read.lines(read.studies[0]):
        assert line.strongest is not None
        assert line.strongest.recovered is not None
        found.append((line, line.strongest, "{} of {}".format(*line.strongest.recovered)))
    # All are recovered without a defence, some under one, none under the other: else the tests would compare zeros.
    counts = [best.recovered[0] for _, best, _ in found if best.recovered]
    assert counts[0] == 16 >= counts[1] > counts[2] == 0
    return found


def test_sentence_verdict_table_chart_and_comparison_hold_one_count_of_one_attack(
    run: Path, lines: list[Told], tmp_path: Path
) -> None:
    source = (run / "report.html").read_text()
    page = Page(source)
    write_comparison(grouped([run]), tmp_path / "page.html")
    compared = Page((tmp_path / "page.html").read_text()).table("sides")
    top, headline = words(page.text.split("Headline", 1)[0]), words(page.sections["headline"])
    names = short_names([line.defense for line, _, _ in lines if line.defense]) | {"": "No defence"}
    for (line, best, count), row, other in zip(lines, page.table("summary"), compared, strict=True):
        name = names[line.defense]
        assert row["recovered"][0] == other["recovered"][0] == count
        attacks = short_names(list(dict.fromkeys(cell.attack for cell in line.tried)))
        assert row["attack"][0].removesuffix(" †") == attacks[best.attack]
        said = name if line.defense else "Without a defence"
        assert re.search(rf"{re.escape(said)}: [a-z ]+ \({count} recovered", top), (name, count, top)
        (first,) = [one for one in page.tables["glance"][0] if one[0][0].strip() in {name, line.defense} - {""}]
        assert count in [cell[0].removesuffix(" †") for cell in first]
        assert f"the strongest attack recovered {count} images" in sentence(line)
        assert f"({count} recovered)" in headline.split(words(sentence(line))[1:])[1].split("partly")[0]
        charts = re.findall(rf"{re.escape(name)}[^<]*? recovered by [^<\"]*", source)
        assert len(charts) >= 2, "the strip beside the headline and the plane"
        assert all(f", {count} recovered by {best.attack}, " in words(one) for one in charts), charts
        ((_, word),) = verdicts(line)
        recovered, n = best.recovered or (0, 0)
        assert (word is Readability.READABLE) == (recovered >= n / 2)
        assert f"{count} recovered" in conclusion([line for line, _, _ in lines])


def test_pictures_and_the_table_of_all_numbers_hold_the_same_counts(run: Path, lines: list[Told]) -> None:
    index = [json.loads(one) for one in (run / "pictures" / "index.jsonl").read_text().splitlines()]
    page = Page((run / "report.html").read_text())
    headline = words(page.sections["headline"])
    shown = [one["title"] for one in page.images["headline"] if str(one["alt"]).startswith("guess")]
    assert shown[0] == lines[0][1].attack
    with (run / "rows.csv").open(newline="") as file:
        rows = [one for one in csv.DictReader(file) if one["metric"] == "recovered"]
    place = ("defense", "attack", "round")
    told = {tuple(one[key] for key in place): round(float(one["value"]) * int(one["n"])) for one in rows}
    for line, best, _ in lines:
        for cell in line.tried:
            assert cell.recovered is not None
            assert told[line.defense, cell.attack, str(cell.round)] == cell.recovered[0]
        assert best.attack in shown
        own = [one for one in index if [one[key] for key in place] == [line.defense, best.attack, best.round]]
        hits = [one for one in own if one["identified"] and rounded_gain(one["psnr"] - one["null_psnr"]) >= LEAST_GAIN]
        assert (len(hits), len(own)) == best.recovered, "the index of pictures and the rows tell the same"
        if hits:
            assert best.best is not None
            first = max(hits, key=lambda one: one["psnr"] - max(one["null_psnr"], one["flat_psnr"]))
            assert best.best.gain == pytest.approx(first["psnr"] - first["null_psnr"], abs=0.006)
            gain = f"{signed(best.best.gain)} dB over its best null baseline ({len(hits)} of {len(own)} recovered)"
            assert gain in headline
        # No attack holds a better image than the headline says.
        every = [cell.best.rank for cell in line.tried if cell.best]
        assert (line.best_image is None) == (not every)
        assert not every or line.best_image.best.rank >= max(every)  # type: ignore[union-attr]
        highest = max(cell.psnr.worst for cell in line.tried if cell.psnr and cell.psnr.worst is not None)
        assert line.highest_image is not None
        assert line.highest_image.psnr is not None
        assert line.highest_image.psnr.worst == highest
