"""``fedveil list``: the same from the file as from the code, and made anew when either is another."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from simulations.catalogue import listed as module
from simulations.catalogue.catalogue import catalogue
from simulations.catalogue.listed import SECTIONS, listed
from simulations.cli import app
from simulations.runtime.user_cache import cache_folder

NOBODY = 1_999_999_999
"""A user that the system has no entry of."""


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return cache_folder()


def test_what_is_read_is_what_the_code_says(cache: Path) -> None:
    made = listed()
    assert made == catalogue()
    assert set(made) == set(SECTIONS)
    (file,) = cache.iterdir()
    assert json.loads(file.read_text()) == made == listed()
    first = CliRunner().invoke(app, ["list"])
    assert first.exit_code == 0
    assert "VisualMixer" in first.output
    assert "default of split: 'vit'" in first.output


def test_attacks_with_shadow_models_name_who_trains_them_and_what_is_an_upper_bound() -> None:
    attacks = {name: lines for name, *lines in catalogue()["attacks"]}
    online = attacks["OnlineLiRA"]
    assert "shadow models: num_shadows, trained by each client, in each attacked round" in online
    assert any(line.startswith("upper bound: shadow models train on the client's members") for line in online)
    assert any(
        "exactly the non-members that are scored" in line for line in online if line.startswith("the server knows")
    )
    assert "shadow models: num_shadows, trained by the server, for each pipeline" in attacks["LiRA"]
    assert not [line for line in attacks["LiRA"] if line.startswith("upper bound")]
    assert not [line for line in attacks["LossThreshold"] if line.startswith("shadow models")]


def test_the_second_time_nothing_imports_torch(cache: Path) -> None:
    listed()
    code = (
        "import sys; from typer.testing import CliRunner; from simulations.cli import app; "
        "told = CliRunner().invoke(app, ['list', 'attacks']); "
        "print(told.exit_code, 'DLG' in told.output, sorted({'torch', 'flwr', 'ray'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split("\n")[0] == "0 True []"


@pytest.mark.parametrize(
    "damage", ["", "[]", "{}", '{"attacks": 3}', "[" * 100_000, '{"attacks": [["\\u001b[31m"', "\0"]
)
def test_a_damaged_file_is_made_anew(cache: Path, damage: str) -> None:
    right = listed()
    (file,) = cache.iterdir()
    file.write_text(damage)
    assert listed() == right
    assert json.loads(file.read_text()) == right


def test_changed_code_is_listed_anew_and_older_files_go(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    listed()
    (old,) = cache.iterdir()
    monkeypatch.setattr(module, "fingerprint", lambda: "another")
    monkeypatch.setattr(module, "_made", lambda: {section: [["new", "line"]] for section in SECTIONS})
    assert listed()["attacks"] == [["new", "line"]]
    assert [path.name for path in cache.iterdir()] == ["catalogue-another.json"] != [old.name]


def test_the_fingerprint_is_of_the_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for package in module.PACKAGES:
        (tmp_path / package).mkdir()
    monkeypatch.setattr(module, "ROOT", tmp_path)
    seen = [module.fingerprint()]
    assert module.fingerprint() == seen[0]
    for content in ("a = 1\n", "a = 12\n"):
        (tmp_path / "attacks" / "mine.py").write_text(content)
        seen.append(module.fingerprint())
    assert len(set(seen)) == 3


def test_what_other_packages_offer_is_never_read_from_a_file(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Offered:
        groups = ("console_scripts", "fedveil.attacks")

    monkeypatch.setattr(module, "entry_points", Offered)
    monkeypatch.setattr(module, "_made", lambda: {section: [["made"]] for section in SECTIONS})
    assert listed()["models"] == [["made"]]
    assert not cache.exists()


def test_where_nothing_can_be_written_it_is_told_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    monkeypatch.setattr(module, "_made", lambda: {section: [["made"]] for section in SECTIONS})
    assert listed()["models"] == [["made"]]


def test_a_user_without_a_home_directory_is_told_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setattr(os, "getuid", lambda: NOBODY)
    monkeypatch.setattr(module, "_made", lambda: {section: [["made"]] for section in SECTIONS})
    with pytest.raises(RuntimeError):
        cache_folder()
    assert listed()["models"] == [["made"]]


def test_every_defence_says_which_stage_its_base_has(cache: Path) -> None:
    stages = {name: told.rpartition("Protects: ")[2] for name, told, *_ in catalogue()["defenses"]}
    assert stages["VisualMixer"] == "images."
    assert stages["DPSGD"] == "training."
    assert stages["PatchShuffle"] == "smashed data."
    assert stages["AdversarialTraining"] == "training of the client half."
    assert stages["GaussianNoise"] == "updates."
