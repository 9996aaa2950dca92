"""``fedveil search --objective measured`` as a user meets it."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from simulations.cli import app
from simulations.search.measured.sentences import notice
from simulations.search.measured.settings import Measured, keys, with_inversion

pytestmark = pytest.mark.usefixtures("as_its_own_process")
BAD = [
    ("candidate=3", "setting 'candidate'"),
    ("controls=1", "controls is 1; allowed"),
    ("by-score=2", "by-score is 2; allowed: 0 to 1"),
    ("papers=3-99", "papers: "),
    ("dataset=census", "allowed: data sets of images with one class for an image"),
    ("attack=;", "attack is ';'; allowed: reconstructions"),
    ("images-per-client=350", "training images; 1750 are needed: 1400 images are attacked"),
    ("attack-rounds=13", "attack-rounds: '13'; allowed"),
    ("train-limit=10", "train-limit is 10; allowed: 0 for all, or at least 80"),
    ("rungs=8", "rungs is 8, with 1, 1, 1, 1, 1, 1, 4, 12 rounds; allowed: more rounds on each rung"),
    ("confirmed=100", "confirmed is 100; allowed: 0 to candidates = 20"),
]


def search(*words: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["search", *words])
    return result.exit_code, result.output


def test_it_refuses_before_any_work(tmp_path: Path) -> None:
    given = ("--objective", "measured", "-s", "dataset=mnist-5k", "--out", str(tmp_path / "out"))
    for setting, message in BAD:
        code, output = search(*given, "-s", setting)
        assert (code, message in " ".join(output.split())) == (2, True), (setting, output)
        assert not (tmp_path / "out").exists()


def test_what_settings_mean() -> None:
    found = Measured(candidates=5, tolerated=0.1)
    assert Measured.from_mapping(found.to_mapping()) == found
    assert set(found.to_mapping()) == set(keys())
    rungs = [Measured(rounds=12).rung(number) for number in range(3)]
    assert [(one.rounds, one.restorer) for one in rungs] == [(1, False), (4, False), (12, True)]
    assert [Measured(**one).to_score for one in ({}, {"candidates": 80}, {"candidates": 80, "by_score": 0})] == [
        60,
        240,
        60,
    ]
    undone = "Spear() | PolicyInversion()"
    for attacks, expected in (
        ("Spear()", f"Spear(); {undone}"),
        (undone, undone),
        (f"Spear(); {undone}", f"Spear(); {undone}"),
    ):
        assert with_inversion(attacks) == expected
    assert notice(Measured()) == notice(Measured(confirmed=5, controls=99)) == ""
    assert notice(Measured(controls=2)).endswith("To confirm 1 hybrid takes 19 random ones; raise controls")
