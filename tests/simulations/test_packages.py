"""fedveil as a package: Flower's bundle, whether Flower Hub would take it, the wheel, and folders that shadow ours."""

import email
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import zipfile
from importlib.metadata import version
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest

from simulations.runtime.launch import BESIDE, PACKAGES, ROOT, Resources, app_folder
from tests import flower_private
from tests.simulations.runtime.runtimes import PATIENCE

pytestmark = pytest.mark.filterwarnings("ignore:GitWildMatchPattern:DeprecationWarning")  # Flower's, of pathspec

FLWR = Path(sys.executable).parent / "flwr"
AROUND = ("benchmarks", "docs", "examples", "tests", ".ci")
BUNDLE_BYTES = 9 * 512 * 1024
"""4.5 of Flower's 10 MiB, 0.9 of them for the digits; the bundle goes to every node."""
TEMPLATES = {path.relative_to(ROOT).as_posix() for path in (ROOT / "simulations/report/templates").rglob("*.md")}


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy without what a working tree gathers: environments, runs, caches."""
    copy = tmp_path_factory.mktemp("clean") / "fedveil"
    copy.mkdir()
    for folder in (*PACKAGES, *AROUND):
        shutil.copytree(ROOT / folder, copy / folder, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", "CONTRIBUTING.md", ".gitignore"):
        shutil.copy(ROOT / name, copy / name)
    return copy


@pytest.fixture(scope="module")
def bundle(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the command writes, and that it has nothing to say against the app."""
    folder = tmp_path_factory.mktemp("built")
    done = subprocess.run(
        [str(FLWR), "build", "--app", str(checkout)], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "missing" not in done.stdout
    assert "arning" not in done.stdout + done.stderr
    (built,) = folder.glob("*.fab")
    assert built.name in done.stdout
    return built


@pytest.mark.long
def test_it_holds_the_five_packages_the_configurations_and_the_license_and_nothing_else(bundle: Path) -> None:
    with zipfile.ZipFile(bundle) as archive:
        names = set(archive.namelist())
        assert archive.read("LICENSE") == (ROOT / "LICENSE").read_bytes()
    code = {path.relative_to(ROOT).as_posix() for package in PACKAGES for path in (ROOT / package).rglob("*.py")}
    data = {path.relative_to(ROOT).as_posix() for path in (ROOT / "clients/data/files").glob("*.json")}
    settings = {path.relative_to(ROOT).as_posix() for path in (ROOT / "simulations/configs").glob("*.toml")}
    assert names == code | data | settings | TEMPLATES | {"LICENSE", "README.md", "pyproject.toml", ".info/CONTENT"}
    assert bundle.stat().st_size < BUNDLE_BYTES
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert flower_private.get_fab_metadata(bundle) == ("fedveil/fedveil", project["version"])


@pytest.mark.long
def test_flower_hub_would_take_the_files(checkout: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The checks that ``flwr app publish`` makes before it sends anything: depth, number, size and encoding of the files.

    Of the folder that CONTRIBUTING.md makes for it, as the whole checkout has more files than Flower Hub takes.
    """
    (line,) = re.findall(r"^git archive HEAD (.+?) \|", (ROOT / "CONTRIBUTING.md").read_text(), flags=re.MULTILINE)
    for name in line.split():
        (shutil.copytree if (checkout / name).is_dir() else shutil.copy)(checkout / name, tmp_path / name)
    paths = flower_private._collect_file_paths(tmp_path)
    flower_private._validate_files(paths)
    assert "Validation passed" in capsys.readouterr().out
    flower_private._validate_description(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["description"])
    flower_private._validate_app_name("fedveil", "name")
    assert {tmp_path / name for name in ("LICENSE", "README.md", "pyproject.toml", "docs/tutorial.md")} <= set(paths)


def test_the_copy_that_an_installed_fedveil_starts_can_be_bundled(tmp_path: Path) -> None:
    app = app_folder(tmp_path, {"another-packages-setting": 1})
    with zipfile.ZipFile(BytesIO(flower_private.build_fab_from_disk(app))) as archive:
        assert {"LICENSE", "README.md"} <= set(archive.namelist())


def test_resources_are_named_as_flower_names_them() -> None:
    from tests.flower_private import SuperLinkConnection, _parse_federation_config_overrides

    def read(text: str) -> Any:
        return _parse_federation_config_overrides([text], SuperLinkConnection("local", address=":local:"))

    given = Resources(3, cpus_per_client=2, gpus_per_client=0.5).federation_config()
    config = read(given)
    assert (config.num_supernodes, config.client_resources_num_cpus, config.client_resources_num_gpus) == (3, 2, 0.5)
    assert config.init_args_num_cpus >= 2
    assert config.init_args_logging_level == "ERROR"
    with pytest.raises(Exception, match="num_cpu"):
        read(given + " client-resources-num-cpu=1")


def run(*command: str | Path, cwd: Path) -> str:
    """A command's output; it knows nothing of this checkout or of this environment."""
    env = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    done = subprocess.run([*map(str, command)], cwd=cwd, env=env, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    run("uv", "build", "--wheel", "--quiet", "--out-dir", folder, checkout, cwd=folder)
    (built,) = folder.glob("*.whl")
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
    assert {"simulations/configs/quick.toml", "clients/data/files/mnist_5k.json", *TEMPLATES} <= set(names)
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in names)
    assert about["Name"] == "fedveil"
    assert about["Description-Content-Type"] == "text/markdown"


@pytest.mark.long
def test_it_says_its_version_and_knows_the_presets(installed: Path, tmp_path: Path) -> None:
    assert run(installed / "fedveil", "--version", cwd=tmp_path) == f"fedveil {version('fedveil')}\n"
    where = run(installed / "python", "-c", "import simulations; print(simulations.__file__)", cwd=tmp_path)
    assert Path(where).is_relative_to(installed.parent)
    run(installed / "fedveil", "run", "--preset", "quick", "--dry-run", "--out", tmp_path / "run", cwd=tmp_path)


@pytest.mark.slow
def test_a_stranger_runs_the_wheel_in_an_empty_folder(wheel: Path, tmp_path: Path) -> None:
    """As `uvx` does: an environment of its own, with the newest allowed release of every dependency, on Flower's runtime."""
    if shutil.which("uvx") is None:
        pytest.skip("no uv on the PATH")
    run(
        "uvx",
        "--python",
        sys.executable,
        "--from",
        wheel,
        "fedveil",
        "run",
        "--preset",
        "quick",
        "--out",
        "quick",
        cwd=tmp_path,
    )
    assert json.loads((tmp_path / "quick" / "config.json").read_text())["progress"]["finished"] is True
    assert (tmp_path / "quick" / "report.html").is_file()
    assert [one.name for one in tmp_path.iterdir()] == ["quick"]


@pytest.mark.slow
def test_the_image_runs_an_audit_as_a_user_that_it_does_not_know(tmp_path: Path) -> None:
    tool = next((name for name in ("podman", "docker") if shutil.which(name) and answers(name, "info")), None)
    if tool is None:
        pytest.skip("no podman or docker that runs containers")
    runs, image = tmp_path / "runs", f"fedveil-test-{os.getpid()}"
    runs.mkdir()
    runs.chmod(0o777)
    run(tool, "build", "--tag", image, "--file", ROOT / "Containerfile", ROOT, cwd=tmp_path)
    try:
        given = ("--rm", "--shm-size", "1g", "--user", "12345:12345", "--volume", f"{runs}:/runs", image)
        run(tool, "run", *given, "run", "--preset", "quick", "--out", "/runs/quick", cwd=tmp_path)
    finally:
        answers(tool, "rmi", image)
    assert json.loads((runs / "quick" / "config.json").read_text())["progress"]["finished"] is True


def answers(*command: str) -> bool:
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def test_a_folder_that_shadows_a_package_is_named(tmp_path: Path) -> None:
    for at, (name, asked) in enumerate((
        ("clients", "import simulations"), ("attacks", "from clients import answer_audits"),
        ("defenses", "from clients import protect_mod"),
    )):  # fmt: skip
        place = tmp_path / str(at) / name
        place.mkdir(parents=True)
        (place / "__init__.py").write_text("")
        done = subprocess.run(
            [sys.executable, "-c", asked], cwd=place.parent, capture_output=True, text=True, check=False,
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(place.parent), str(ROOT)])},
        )  # fmt: skip
        assert done.returncode == 1
        assert f"fedveil's package {name!r} is at {ROOT / name}" in done.stderr
        assert str(place) in done.stderr
