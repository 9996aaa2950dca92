"""The template of docs/plug_in, installed: its defence, attacks, model and data set are found by their entry points and work."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.common.documents import blocks

ROOT = Path(__file__).resolve().parents[2]
TEMPLATE = ROOT / "docs/plug_in"
BLOCKS = {"adding_a_defense.md": ["posterise.py"], "adding_an_attack.md": ["nearest.py"]}
FEDVEIL = str(Path(sys.executable).with_name("fedveil"))


def test_the_page_shows_the_files_of_the_template() -> None:
    for page, files in BLOCKS.items():
        shown = [text for text in blocks(f"docs/{page}", "python") if "def test_" not in text]
        assert shown == [(TEMPLATE / "my_package" / file).read_text() for file in files]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The template folder, built and installed as a package."""
    copy, site = tmp_path_factory.mktemp("copy") / "plug_in", tmp_path_factory.mktemp("site")
    shutil.copytree(TEMPLATE, copy, ignore=shutil.ignore_patterns("__pycache__"))
    target = ("--no-deps", "--python", sys.executable, "--target", str(site), str(copy))
    subprocess.run(["uv", "pip", "install", "--quiet", *target], check=True)
    return site


def output_of(site: Path, *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(site), str(ROOT)]), **more}
    return subprocess.run(
        [sys.executable, *arguments], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )


def run(site: Path, *arguments: str, **more: str) -> str:
    done = output_of(site, *arguments, **more)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


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


WRONG = (
    ("defenses", "Base = defenses.base:InputDefense", "is no dataclass that derives from Defense"),
    ("defenses", "Other = my_package.posterise:Posterise", "must have the name of its class, Posterise"),
    ("models", "cnn = my_package.net:GeluNet", "another package offers one of this name"),
    ("models", "net = my_package.net:Missing", "my_package.net has no 'Missing'"),
    ("datasets", "photos = my_package.stripes:stripes", "has the name of ours"),
    ("datasets", "tiny = my_package.stripes:Stripes", "needs size, seed"),
)
"""Group and line of an entry point -> what the error says."""


@pytest.mark.slow
def test_a_wrong_entry_point_is_named(installed: Path, tmp_path: Path, subtests: pytest.Subtests) -> None:
    for at, (group, line, message) in enumerate(WRONG):
        with subtests.test(f"{group} {line}"):
            site = tmp_path / str(at)
            metadata = site / "wrong-1.0.dist-info"
            metadata.mkdir(parents=True)
            (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: wrong\nVersion: 1.0\n")
            (metadata / "entry_points.txt").write_text(f"[fedveil.{group}]\n{line}\n")
            (site / "my_package").symlink_to(installed / "my_package")
            setting = f"{group.removesuffix('s')}={line.partition(' ')[0]}"
            setting = "defenses=Unheard()" if group == "defenses" else setting
            done = output_of(site, FEDVEIL, "run", "--dry-run", "-s", setting)
            assert done.returncode in (1, 2)
            assert message in done.stderr
            assert "Traceback" not in done.stderr
