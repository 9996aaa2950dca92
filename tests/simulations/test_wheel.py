"""fedveil as it is installed elsewhere: from its wheel, with no checkout in sight."""

from __future__ import annotations

import email
import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from importlib.metadata import version
from pathlib import Path

import pytest

from simulations.runtime.launch import BESIDE, PACKAGES, ROOT
from tests.simulations.runtime.runtimes import PATIENCE

SOURCES = (*PACKAGES, "pyproject.toml", *BESIDE, ".gitignore")


def run(*command: str | Path, cwd: Path) -> str:
    """A command's output; it knows nothing of this checkout or of this environment."""
    env = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    done = subprocess.run([*map(str, command)], cwd=cwd, env=env, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    for name in SOURCES:
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        source.mkdir(exist_ok=True)
        copy(ROOT / name, source / name)
    run("uv", "build", "--wheel", "--quiet", "--out-dir", folder / "built", source, cwd=folder)
    (built,) = (folder / "built").glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of a new environment that holds the wheel and Flower; what they import is taken from this one.

    Of this environment only the folder of packages is added, without its ``.pth`` files: those that name the checkout.
    """
    home = tmp_path_factory.mktemp("installed") / "venv"
    run("uv", "venv", "--quiet", "--python", sys.executable, home, cwd=home.parent)
    python = home / "bin" / "python"
    run("uv", "pip", "install", "--quiet", "--no-deps", "--python", python, wheel, f"flwr=={version('flwr')}", cwd=home)
    packages = run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=home).strip()
    (Path(packages) / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return home / "bin"


@pytest.mark.long
def test_it_holds_the_packages_typed_with_configurations_and_the_app(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        (metadata,) = (name for name in names if name.endswith("/METADATA"))
        about = email.message_from_bytes(archive.read(metadata))
        for name in ("pyproject.toml", *BESIDE):
            assert archive.read(f"simulations/app_{name}") == (ROOT / name).read_bytes()
    assert {name.split("/")[0] for name in names} == {*PACKAGES, metadata.split("/")[0]}
    assert {f"{package}/py.typed" for package in PACKAGES} <= set(names)
    assert "simulations/configs/quick.toml" in names
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in names)
    assert about["Name"] == "fedveil"
    assert about["Description-Content-Type"] == "text/markdown"


@pytest.mark.long
def test_it_says_its_version_and_knows_the_presets(installed: Path, tmp_path: Path) -> None:
    assert run(installed / "fedveil", "--version", cwd=tmp_path) == f"fedveil {version('fedveil')}\n"
    where = run(installed / "python", "-c", "import simulations; print(simulations.__file__)", cwd=tmp_path)
    assert Path(where).is_relative_to(installed.parent)
    run(installed / "fedveil", "run", "--preset", "quick", "--dry-run", "--out", tmp_path / "run", cwd=tmp_path)
