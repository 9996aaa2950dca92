"""What docs/ says about adding a defence and an attack, done by another package that is found by its entry points."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = ("adding_a_defense.md", "adding_an_attack.md")
EXAMPLES = ("Posterise", "NearestAuxiliary", "LayerwiseInversion")


def blocks(page: str, language: str) -> list[str]:
    found = re.findall(rf"^```{language}\n(.*?)^```$", (ROOT / "docs" / page).read_text(), re.MULTILINE | re.DOTALL)
    assert found, page
    return found


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as an installer leaves it: the package, and the metadata that name its entry points."""
    site = tmp_path_factory.mktemp("site")
    package, metadata = site / "my_package", site / "my_package-1.0.dist-info"
    package.mkdir()
    metadata.mkdir()
    (package / "__init__.py").write_text("")
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: my-package\nVersion: 1.0\n")
    points: dict[str, list[str]] = {}
    for page in PAGES:
        for source, text in zip(blocks(page, "python"), blocks(page, "toml"), strict=True):
            for group, offered in tomllib.loads(text)["project"]["entry-points"].items():
                for name, value in offered.items():
                    points.setdefault(group, []).append(f"{name} = {value}")
                    (package / f"{value.partition(':')[0].rpartition('.')[2]}.py").write_text(source)
    lines = [line for group, named in points.items() for line in (f"[{group}]", *named)]
    (metadata / "entry_points.txt").write_text("\n".join(lines) + "\n")
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


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_examples_obey_what_every_class_must(passed: list[str], name: str) -> None:
    assert sum(name in line for line in passed) >= 6, passed


def test_the_examples_work_in_a_run(installed: Path, tmp_path: Path) -> None:
    code = f"""
from pathlib import Path
from simulations.experiment import Experiment
from simulations.server_app import run_experiment
from tests.local_grid import LocalGrid
run_experiment(LocalGrid(2), Experiment.of(
    output_dir={str(tmp_path / "run")!r}, dataset="mnist-5k", model="lenet", train_limit=120, test_limit=20, rounds=1,
    local_epochs=1, defenses="Posterise(bits=1)", probe_attacks="NearestAuxiliary(candidates=8)", update_attacks="",
    probe_targets=1, attack_workers=0, attack_rounds="first",
))
"""
    run(installed, "-c", code)
    rows = (tmp_path / "run" / "rows.jsonl").read_text()
    assert rows.count('"defense": "Posterise(bits=1)", "attack": "NearestAuxiliary(candidates=8)"') > 3
    assert '"status": "failed"' not in rows


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("Blur = my_package.posterise:Posterise", "there is another Blur"),
        ("Missing = my_package.nowhere:Missing", "cannot be loaded: ModuleNotFoundError"),
        ("Base = defenses.base:InputDefense", "is no dataclass that derives from Defense"),
        ("Other = my_package.posterise:Posterise", "must be named as its class, Posterise"),
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
