"""``fedveil search --objective measured`` as a user meets it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from simulations.cli import app
from simulations.search.measured.settings import Measured, keys
from simulations.search.measured.trials import CHOICE, judged, open_study

TINY = {
    "dataset": "mnist-5k", "papers": "3-1-7", "train-limit": 80, "test-limit": 50, "candidates": 3, "scored": 6, "rounds": 2,
    "rungs": 2, "reduction": 2, "local-epochs": 1, "images-per-client": 2, "num-clients": 2, "workers": 2,
    "controls": 2, "seeds": 2, "curtail": False,
}  # fmt: skip


def search(*words: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["search", *words])
    return result.exit_code, result.output


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("candidate=3", "setting 'candidate'"),
        ("controls=1", "controls is 1; allowed"),
        ("by-score=2", "by-score is 2; allowed: 0 to 1"),
        ("papers=3-99", "papers: "),
        ("dataset=census", "allowed: data sets of images with one class for an image"),
        ("dataset=cifar10", "set data-dir to the directory that holds it"),
        ("attack=Inverting()", "Inverting"),
        ("attack=", "attack is ''; allowed: reconstructions"),
        ("attack=;", "attack is ';'; allowed: reconstructions"),
        ("attack=Spear(); Spear()", "Spear() is given twice"),
        ("attack=Spear() | LearnedRestorer(); DLG(iterations=0)", "iterations"),
        ("images-per-client=999", "takes 3996 training images"),
        ("images-per-client=350", "training images; 1750 are needed: 1400 images are attacked"),
        (
            "attack-rounds=sometimes",
            "attack-rounds: 'sometimes'; allowed: first, last, final, all and numbers from 1 to rounds = 12",
        ),
        ("attack-rounds=13", "attack-rounds: '13'; allowed"),
        ("attack-rounds=", "attack-rounds is ''; allowed: first"),
        ("train-limit=10", "train-limit is 10; allowed: 0 for all, or at least 80"),
        ("rungs=8", "rungs is 8, with 1, 1, 1, 1, 1, 1, 4, 12 rounds; allowed: more rounds on each rung"),
        ("rounds=2", "rungs is 3, with 1, 1, 2 rounds; allowed"),
        ("confirmed=100", "confirmed is 100; allowed: 0 to candidates = 20"),
    ],
)
def test_it_refuses_before_any_work(setting: str, message: str, tmp_path: Path) -> None:
    code, output = search(
        "--objective", "measured", "-s", "dataset=mnist-5k", "-s", setting, "--out", str(tmp_path / "out")
    )
    assert code == 2
    assert message in " ".join(output.split())
    assert not (tmp_path / "out").exists()


def test_settings_survive_a_file() -> None:
    found = Measured(candidates=5, tolerated=0.1)
    assert Measured.from_mapping(found.to_mapping()) == found
    assert set(found.to_mapping()) == set(keys())


def test_the_last_rung_is_the_whole_training() -> None:
    found = [Measured(rounds=12).rung(number) for number in range(3)]
    assert [one.rounds for one in found] == [1, 4, 12]
    assert [one.restorer for one in found] == [False, False, True]


@pytest.mark.slow
def test_a_whole_search_and_its_resumption(tmp_path: Path) -> None:
    out = tmp_path / "out"
    words = [word for key, value in TINY.items() for word in ("-s", f"{key}={value}")]
    code, output = search("--objective", "measured", "--out", str(out), "--json", *words)
    assert code == 0, output
    result = json.loads(output.strip().split("\n")[-1])
    assert len(result["confirmed"]) == 1
    page = (out / "search.html").read_text(encoding="utf-8")
    for text in (result["verdict"][0], result["confirmed"][0], "3-1-7"):
        assert text in page
    known = judged(open_study(out, CHOICE, Measured()), Measured())
    assert len(known) == 4
    code, output = search("--resume", str(out), "--json", "-s", "workers=1")
    assert code == 0
    assert json.loads(output.strip().split("\n")[-1]) == result
    assert judged(open_study(out, CHOICE, Measured()), Measured()) == known
    code, output = search("--resume", str(out), "-s", "candidates=9")
    assert (code, "only workers may be others" in " ".join(output.split())) == (2, True)
