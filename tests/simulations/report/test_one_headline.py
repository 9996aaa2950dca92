"""The page of a real audit: sentence, verdict, table, chart and picture are of one attack, and hold one count."""

from __future__ import annotations

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
from simulations.report.studies.recovery import LEAST_GAIN
from simulations.report.text import short_names, signed
from strategies.audit.score_rows import rounded_gain
from tests.simulations.report.report_run import Page

pytestmark = pytest.mark.slow

DEFENSES = "GaussianNoise(std=0.05, per='step'); GaussianNoise(std=30.0, per='step')"
ATTACKS = "CocktailParty(); InvertingGradients(iterations=10)"


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
def lines(run: Path) -> list[Line]:
    read = read_run(run)
    (study,) = read.studies
    return read.lines(study)


def words(text: str) -> str:
    return " ".join(text.replace("\xa0", " ").split())


def test_the_run_shows_all_that_the_page_must_agree_on(lines: list[Line]) -> None:
    """Else the tests below would compare zeros: all are recovered without a defence, some under one, none under the other."""
    counts = [line.strongest.recovered for line in lines if line.strongest]
    assert [n for _, n in filter(None, counts)] == [16] * 3
    whole, some, none = (k for k, _ in filter(None, counts))
    assert whole == 16 >= some > none == 0


def test_sentence_verdict_table_chart_and_picture_hold_one_count_of_one_attack(run: Path, lines: list[Line]) -> None:
    source = (run / "report.html").read_text()
    page = Page(source)
    top, headline = words(page.text.split("Headline", 1)[0]), words(page.sections["headline"])
    names = short_names([line.defense for line in lines if line.defense]) | {"": "No defence"}
    for line, row in zip(lines, page.table("summary"), strict=True):
        best = line.strongest
        assert best is not None
        assert best.recovered is not None
        count = "{} of {}".format(*best.recovered)
        assert row["recovered"][0] == count
        assert (
            row["attack"][0].removesuffix(" †")
            == short_names(list(dict.fromkeys(cell.attack for cell in line.tried)))[best.attack]
        )
        name = names[line.defense]
        said = "Without a defence" if not line.defense else name
        assert re.search(rf"{re.escape(said)}: [a-z ]+ \({count} recovered", top), (name, count, top)
        (first,) = [
            one for one in page.tables["glance"][0] if one[0][0].strip() in (name, line.defense) and one[0][0].strip()
        ]
        assert count in [cell[0].removesuffix(" †") for cell in first]
        assert f"the strongest attack recovered {count} images" in sentence(line)
        assert words(sentence(line))[1:] in headline
        charts = re.findall(rf"{re.escape(name)}[^<]*? recovered by [^<\"]*", source)
        assert len(charts) >= 2, "the strip beside the headline and the plane"
        assert all(f", {count} recovered by {best.attack}, " in words(one) for one in charts), charts
        assert f"({count} recovered)" in headline.split(words(sentence(line))[1:])[1].split("partly")[0]


def test_the_verdict_follows_from_the_count(lines: list[Line]) -> None:
    for line in lines:
        ((_, word),) = verdicts(line)
        assert line.strongest is not None
        recovered, n = line.strongest.recovered or (0, 0)
        assert (word is Readability.READABLE) == (recovered >= n / 2)
        assert f"{recovered} of {n} recovered" in conclusion(lines)


def test_the_picture_is_of_the_strongest_attacks_best_recovered_image(run: Path, lines: list[Line]) -> None:
    index = [json.loads(one) for one in (run / "pictures" / "index.jsonl").read_text().splitlines()]
    page = Page((run / "report.html").read_text())
    headline = words(page.sections["headline"])
    shown = [one["title"] for one in page.images["headline"] if str(one["alt"]).startswith("guess")]
    assert shown[0] == (lines[0].strongest.attack if lines[0].strongest else "")
    for line in lines:
        best = line.strongest
        assert best is not None
        assert best.attack in shown
        place = (line.defense, best.round, best.attack)
        own = [one for one in index if (one["defense"], one["round"], one["attack"]) == place]
        recovered = [
            one for one in own if one["identified"] and rounded_gain(one["psnr"] - one["null_psnr"]) >= LEAST_GAIN
        ]
        assert (len(recovered), len(own)) == best.recovered, "the index of pictures and the rows tell the same"
        if recovered:
            assert best.best is not None
            first = max(recovered, key=lambda one: one["psnr"] - max(one["null_psnr"], one["flat_psnr"]))
            assert best.best.gain == pytest.approx(first["psnr"] - first["null_psnr"], abs=0.006)
            assert (
                f"{signed(best.best.gain)} dB over its best null baseline ({len(recovered)} of {len(own)} recovered)"
                in headline
            )


def test_no_attack_holds_a_better_image_than_the_headline_says(lines: list[Line]) -> None:
    for line in lines:
        every = [cell.best.rank for cell in line.tried if cell.best]
        best = line.best_image
        assert (best is not None and best.best is not None and best.best.rank >= max(every)) if every else best is None
        highest = max(cell.psnr.worst for cell in line.tried if cell.psnr and cell.psnr.worst is not None)
        assert line.highest_image is not None
        assert line.highest_image.psnr is not None
        assert line.highest_image.psnr.worst == highest


def test_the_comparison_has_the_same_counts(run: Path, lines: list[Line], tmp_path: Path) -> None:
    write_comparison(grouped([run]), tmp_path / "page.html")
    shown = Page((tmp_path / "page.html").read_text()).table("sides")
    for line, row in zip(lines, shown, strict=True):
        assert line.strongest is not None
        assert line.strongest.recovered is not None
        assert row["recovered"][0] == "{} of {}".format(*line.strongest.recovered)


def test_the_table_of_all_numbers_has_the_shares(run: Path, lines: list[Line]) -> None:
    import csv

    with (run / "rows.csv").open(newline="") as file:
        rows = [one for one in csv.DictReader(file) if one["metric"] == "recovered"]
    told = {
        (one["defense"], one["attack"], int(one["round"])): round(float(one["value"]) * int(one["n"])) for one in rows
    }
    for line in lines:
        for cell in line.tried:
            assert cell.recovered is not None
            assert told[line.defense, cell.attack, cell.round] == cell.recovered[0]
