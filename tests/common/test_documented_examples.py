"""The template of docs/plug_in, installed: its defence, attacks, model and data set are found by their entry points and work."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.common.documents import blocks

ROOT = Path(__file__).resolve().parents[2]
TEMPLATE = ROOT / "docs/plug_in"
BLOCKS = {"adding_a_defense.md": ["posterise.py"], "adding_an_attack.md": ["nearest.py", "layerwise.py"]}
FEDVEIL = str(Path(sys.executable).with_name("fedveil"))
EXAMPLES = ("Posterise", "NearestAuxiliary", "LayerwiseInversion")


@pytest.mark.parametrize("page", BLOCKS)
def test_the_page_shows_the_files_of_the_template(page: str) -> None:
    shown = [text for text in blocks(f"docs/{page}", "python") if "def test_" not in text]
    assert shown == [(TEMPLATE / "my_package" / file).read_text() for file in BLOCKS[page]]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The template folder, built and installed as a package."""
    copy, site = tmp_path_factory.mktemp("copy") / "plug_in", tmp_path_factory.mktemp("site")
    shutil.copytree(TEMPLATE, copy, ignore=shutil.ignore_patterns("__pycache__"))
    command = [
        "uv",
        "pip",
        "install",
        "--quiet",
        "--no-deps",
        "--python",
        sys.executable,
        "--target",
        str(site),
        str(copy),
    ]
    subprocess.run(command, check=True)
    return site


def run(site: Path, *arguments: str) -> str:
    paths = os.pathsep.join([str(site), str(ROOT)])
    done = subprocess.run(
        [sys.executable, *arguments], cwd=ROOT, env={**os.environ, "PYTHONPATH": paths}, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def passed(installed: Path) -> list[str]:
    """The tests of every defence and every attack that the examples passed, all in one run."""
    names, files = " or ".join(EXAMPLES), ("test_every_defense.py", "test_every_attack.py")
    paths = [f"tests/common/{file}" for file in files]
    output = run(installed, "-m", "pytest", "-v", "-p", "no:cacheprovider", *paths, "-k", names)
    return [line for line in output.splitlines() if "PASSED" in line]


@pytest.mark.long
@pytest.mark.parametrize("name", EXAMPLES)
def test_the_examples_obey_what_every_class_must(passed: list[str], name: str) -> None:
    assert sum(name in line for line in passed) >= 6, passed


@pytest.mark.long
def test_the_examples_work_in_a_run(installed: Path, tmp_path: Path) -> None:
    code = f"""
from pathlib import Path
from simulations.experiment.experiment import Experiment
from simulations.server_app import run_experiment
from tests.local_grid import LocalGrid
run_experiment(LocalGrid(2), Experiment.of(
    output_dir={str(tmp_path / "run")!r}, dataset="stripes", model="gelu_net", train_limit=120, test_limit=20, rounds=1,
    local_epochs=1, defenses="Posterise(bits=1)", probe_attacks="NearestAuxiliary(candidates=8)", update_attacks="",
    probe_targets=1, attack_workers=0, attack_rounds="first",
))
"""
    run(installed, "-c", code)
    rows = (tmp_path / "run" / "rows.jsonl").read_text()
    assert rows.count('"defense": "Posterise(bits=1)", "attack": "NearestAuxiliary(candidates=8)"') > 3
    assert '"status": "failed"' not in rows


@pytest.mark.slow
def test_the_examples_are_listed(installed: Path) -> None:
    parts = [
        ("defenses", "Posterise"),
        ("attacks", "NearestAuxiliary"),
        ("models", "gelu_net"),
        ("datasets", "stripes"),
    ]
    for what, name in parts:
        listed = run(installed, FEDVEIL, "list", what)
        assert re.search(rf"^ *{name}\b", listed, re.MULTILINE), listed
    assert "my_package.net:GeluNet of the package my-package 1.0" in run(installed, FEDVEIL, "list", "models")


@pytest.mark.long
@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("Blur = my_package.posterise:Posterise", "there is another Blur"),
        ("Missing = my_package.nowhere:Missing", "cannot be loaded: ModuleNotFoundError"),
        ("Base = defenses.base:InputDefense", "is no dataclass that derives from Defense"),
        ("Other = my_package.posterise:Posterise", "must have the name of its class, Posterise"),
    ],
)
def test_a_wrong_entry_point_is_named(installed: Path, tmp_path: Path, line: str, message: str) -> None:
    metadata = tmp_path / "wrong-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: wrong\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(f"[fedveil.defenses]\n{line}\n")
    code = "from defenses import parse\ntry:\n    parse('Unheard()')\nexcept ValueError as error:\n    print(error)"
    paths = os.pathsep.join([str(tmp_path), str(installed / "nothing"), str(ROOT)])
    (tmp_path / "my_package").symlink_to(installed / "my_package")
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        check=True,
    )
    assert message in done.stdout


@pytest.mark.long
@pytest.mark.parametrize(
    ("group", "line", "setting", "message"),
    [
        ("models", "cnn = my_package.net:GeluNet", "model=cnn", "another package offers one of this name"),
        ("models", "resnet18 = my_package.net:GeluNet", "model=resnet18", "another package offers one of this name"),
        ("models", "net = my_package.net:Missing", "model=net", "my_package.net has no 'Missing'"),
        ("models", "net = my_package.missing:Net", "model=net", "my_package.missing cannot be imported"),
        ("datasets", "photos = my_package.stripes:stripes", "dataset=photos", "has the name of ours"),
        ("datasets", "tiny = my_package.stripes:Stripes", "dataset=tiny", "needs size, seed"),
    ],
)
def test_a_wrong_model_or_data_set_is_named(
    installed: Path, tmp_path: Path, group: str, line: str, setting: str, message: str
) -> None:
    metadata = tmp_path / "wrong-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: wrong\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(f"[fedveil.{group}]\n{line}\n")
    (tmp_path / "my_package").symlink_to(installed / "my_package")
    command = [sys.executable, FEDVEIL, "run", "--dry-run", "-s", setting]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)])}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode in (1, 2)
    assert message in done.stderr
    assert "Traceback" not in done.stderr
