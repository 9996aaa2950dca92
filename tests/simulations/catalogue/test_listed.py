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
MADE = {section: [["new", "line"]] for section in SECTIONS}


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return cache_folder()


def test_what_is_read_is_what_the_code_says(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = listed()
    assert made == catalogue()
    assert set(made) == set(SECTIONS)
    (file,) = cache.iterdir()
    assert json.loads(file.read_text()) == made == listed()
    first = CliRunner().invoke(app, ["list"])
    assert first.exit_code == 0
    assert all(one in first.output for one in ("VisualMixer", "default of split: 'vit'"))
    # The second time nothing imports torch.
    code = (
        "import sys; from typer.testing import CliRunner; from simulations.cli import app; "
        "told = CliRunner().invoke(app, ['list', 'attacks']); "
        "print(told.exit_code, 'DLG' in told.output, sorted({'torch', 'flwr', 'ray'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split("\n")[0] == "0 True []"
    monkeypatch.setattr(module, "_made", lambda: MADE)
    for damage in ("", '{"attacks": [["\\u001b[31m"', "\0"):
        file.write_text(damage)
        assert listed() == MADE, damage[:20]
        assert json.loads(file.read_text()) == MADE
    monkeypatch.setattr(module, "fingerprint", lambda: "another")
    assert listed() == MADE
    assert [path.name for path in cache.iterdir()] == ["catalogue-another.json"] != [file.name]


def test_every_attack_and_defence_says_what_it_needs() -> None:
    found = catalogue()
    attacks = {name: lines for name, *lines in found["attacks"]}
    for name, told in (("OnlineLiRA", [True, True]), ("LiRA", [True, False]), ("LossThreshold", [False, False])):
        starts = ("shadow models", "upper bound")
        assert [any(line.startswith(start) for line in attacks[name]) for start in starts] == told, name
    trained = "shadow models: num_shadows, trained by {}"
    assert trained.format("each client, in each attacked round") in attacks["OnlineLiRA"]
    assert trained.format("the server, for each pipeline") in attacks["LiRA"]
    stages = {name: told.rpartition("Protects: ")[2] for name, told, *_ in found["defenses"]}
    names = ("VisualMixer", "DPSGD", "PatchShuffle", "AdversarialTraining", "GaussianNoise")
    told = ["images.", "training.", "smashed data.", "training of the client half.", "updates."]
    assert [stages[name] for name in names] == told


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


def test_where_no_file_may_be_used_it_is_told(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Offered:
        groups = ("console_scripts", "fedveil.attacks")

    monkeypatch.setattr(module, "_made", lambda: MADE)
    with monkeypatch.context() as patch:
        patch.setattr(module, "entry_points", Offered)  # what other packages offer
        assert listed() == MADE
        assert not cache.exists()
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert listed() == MADE
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setattr(os, "getuid", lambda: NOBODY)
    with pytest.raises(RuntimeError):
        cache_folder()
    assert listed() == MADE
