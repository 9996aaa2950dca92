"""The section on outsourced training: its numbers follow from the rows; an attack is measured by what it adds to looking."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from simulations.report import Row, validate, write_report
from simulations.report.analysis.summary import summarise
from simulations.report.sections.outsourced import UploadRead, outsourced_training
from simulations.report.studies.study import Study, split
from tests.simulations.report.report_run import CONFIG, NULLS, Page, demo_rows, row, write_run

LOOKING, RESTORED, MEANS = "AsUploaded()", "AsUploaded() | LearnedRestorer()", "AsUploaded() | WindowMean()"
MIXER = "Mixer(window=4)"
SETTINGS = CONFIG | {"pipelines": ["", MIXER], "defenses": {MIXER: {"adaptive_attacks": ["LearnedRestorer"]}}}
PSNR = {("", LOOKING): 100.0, (MIXER, LOOKING): 14.0, (MIXER, RESTORED): 17.5, (MIXER, MEANS): 13.25}
DASH, MINUS = "\N{EN DASH}", "\N{MINUS SIGN}"


def known(defense: str, **given: Any) -> dict[str, Any]:
    return {"defense": defense, "scenario": "outsourced"} | given


def training(defense: str, seed: int = 0) -> list[dict[str, Any]]:
    """What a run writes about uploads, then about two rounds of training."""
    at_first = {
        "clients-failed": 0.0,
        "upload-bytes": 2e6,
        "upload-seconds": 0.5 + bool(defense),
        "uploaded-images": 640.0,
    }
    found = [row(metric=name, value=value, n=4, **known(defense, seed=seed)) for name, value in at_first.items()]
    for at in (1, 2):
        mine = known(defense, seed=seed, round=at)
        for reference, value in (("original", 0.5), ("transformed", 0.6 + 0.1 * at)):
            found.append(row(metric="test-accuracy", reference=reference, value=value, n=400, **mine))
        found.append(row(metric="server-seconds", value=float(2 * at), **mine))
    return found


def attack(defense: str, name: str, psnr: float, **given: Any) -> list[dict[str, Any]]:
    """What one attack on uploaded images writes."""
    card = {
        "observation": "uploaded images",
        "images": 2,
        "labels": "uploaded with the images",
        "auxiliary_data": "none",
    }
    mine = known(defense, attack=name, card=card, n=32) | given
    ends = {"ci_low": psnr - 1, "ci_high": psnr + 1, "worst": psnr + 5}
    return [
        row(**{"metric": "psnr", "reference": "original", "value": psnr} | ends | mine),
        row(**{"metric": "psnr", "reference": "transformed", "value": 100.0} | mine),
        row(**{"metric": "ssim", "reference": "original", "value": psnr / 100} | mine),
        row(**mine | {"metric": "retrieval", "reference": "original", "value": 1.0, "card": card | {"chance": 0.01}}),
        row(**{"metric": "attack-seconds", "value": 1.0} | mine),
    ]


def outsourced_rows(seeds: tuple[int, ...] = (0,)) -> list[dict[str, Any]]:
    """A finished run."""
    found = []
    for seed in seeds:
        found += training("", seed) + training(MIXER, seed)
        for (defense, name), psnr in PSNR.items():
            # What adds seeds moves the looking alone: gains are of means.
            found += attack(defense, name, psnr - seed * (name == LOOKING and bool(defense)), seed=seed)
        for defense in ("", MIXER):
            card = {"observation": "uploaded images"}
            found += [
                row(
                    attack=name,
                    value=value,
                    role="null baseline",
                    metric="psnr",
                    reference="original",
                    card=card,
                    **known(defense, seed=seed),
                )
                for name, value in NULLS.items()
            ]
    return found


def build(directory: Path, rows: list[dict[str, Any]] | None = None) -> Page:
    given = outsourced_rows() if rows is None else rows
    return Page(write_report(write_run(directory, given, SETTINGS)).read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Page:
    return build(tmp_path_factory.mktemp("outsourced"))


def study(rows: list[dict[str, Any]]) -> Study:
    return split(validate([Row.from_json(one) for one in rows]), ["", MIXER])[0]


def reads(rows: list[dict[str, Any]]) -> dict[tuple[str, str, int], UploadRead]:
    mine = study(rows)
    view = outsourced_training(mine, summarise(mine, SETTINGS["defenses"]))
    assert view is not None
    return {(one.cell.defense, one.cell.attack, one.cell.round): one for one in view.reads}


# The gain over the upload ---------------------------------------------------------------------------------------------------


def test_a_gain_is_what_an_attack_adds_to_looking_at_the_same_defence() -> None:
    gains = {place[:2]: one.gain for place, one in reads(outsourced_rows()).items()}
    assert gains == {("", LOOKING): None, (MIXER, LOOKING): None, (MIXER, RESTORED): 3.5, (MIXER, MEANS): -0.75}


def test_a_gain_over_several_seeds_is_that_of_the_means() -> None:
    """Looking has 14 and 13 dB."""
    assert reads(outsourced_rows((0, 1)))[MIXER, RESTORED, 1].gain == pytest.approx(17.5 - 13.5)


def test_a_gain_is_over_looking_in_the_same_round() -> None:
    later = attack(MIXER, LOOKING, 10.0, round=2) + attack(MIXER, RESTORED, 12.0, round=2)
    found = reads(outsourced_rows() + later)
    assert (found[MIXER, RESTORED, 1].gain, found[MIXER, RESTORED, 2].gain) == (3.5, 2.0)


def test_where_nobody_looked_or_the_attack_failed_there_is_no_gain() -> None:
    rows = [one for one in outsourced_rows() if (one["defense"], one["attack"]) != (MIXER, LOOKING)]
    assert reads(rows)[MIXER, RESTORED, 1].gain is None
    card = {"observation": "uploaded images"}
    broken = row(metric="attack", attack="Broken()", status="failed", message="NaN", card=card, **known(MIXER))
    assert reads([*outsourced_rows(), broken])[MIXER, "Broken()", 1].gain is None


def test_attacks_on_the_model_are_no_reads_of_uploads() -> None:
    card = {"observation": "trained model"}
    drawn = row(metric="psnr", reference="original", value=11.0, attack="Drawn()", card=card, **known(MIXER, round=3))
    assert reads([*outsourced_rows(), drawn]).keys() == reads(outsourced_rows()).keys()


# The section ----------------------------------------------------------------------------------------------------------------


@pytest.mark.long
def test_the_section_is_there_only_where_something_was_uploaded(page: Page, tmp_path: Path) -> None:
    assert "outsourced" in page.sections
    assert "#outsourced" in [attributes.get("href") for _, attributes in page.tags]
    other = build(tmp_path, demo_rows())
    assert "outsourced" not in other.sections
    assert "#outsourced" not in [attributes.get("href") for _, attributes in other.tags]


def test_every_number_of_an_upload_follows_from_the_rows(page: Page) -> None:
    none, mixer = page.table("outsourced")
    assert (none["Defence"], mixer["Defence"]) == (["No defence", "after round 2"], [MIXER, "after round 2"])
    # As deployed: on transformed test images, in the last complete round.
    assert mixer["accuracy as deployed, %"][0] == "80.0"
    assert mixer["images uploaded"] == ["640"]
    assert mixer["bytes of a client"] == ["2 MB"]
    assert (none["seconds of a client"], mixer["seconds of a client"]) == (["0.5"], ["1.5"])
    assert mixer["seconds of the server, a round"] == ["3"]


def test_every_score_of_a_read_follows_from_the_rows(page: Page) -> None:
    found = {(one["Defence"][0], one["Attack"][0]): one for one in page.table("outsourced", 1)}
    assert found.keys() == {(defense or "No defence", name) for defense, name in PSNR}
    restored, looking = found[MIXER, RESTORED], found[MIXER, LOOKING]
    assert restored["PSNR, dB"] == ["17.5", "16.5 to 18.5"]
    assert restored["over null"] == ["+5.2", "mean 12.2"]
    assert restored["over the upload"] == ["+3.5"]
    assert found[MIXER, MEANS]["over the upload"] == [f"{MINUS}0.8"]
    assert looking["over the upload"] == [DASH]
    assert restored["SSIM"][0] == "0.17"
    assert restored["identified"][0] == "32 of 32"
    assert "adaptive to this defence" in restored["Attack"]
    assert "adaptive to this defence" not in looking["Attack"]


def test_a_run_that_has_just_uploaded_shows_what_it_has(tmp_path: Path) -> None:
    rows = [one for one in training(MIXER) if one["metric"] not in ("test-accuracy", "server-seconds")]
    found = build(tmp_path, rows)
    shown = next(one for one in found.table("outsourced") if one["Defence"][0] == MIXER)
    assert shown["images uploaded"] == ["640"]
    assert shown["accuracy as deployed, %"] == shown["seconds of the server, a round"] == [DASH]
    assert "What comes back out of the uploads" not in found.sections["outsourced"]
