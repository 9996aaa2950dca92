"""The pages about adding a defence, an attack or a metric, followed in a copy of the repository: nothing else must change."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.common.documents import ROOT

pytestmark = pytest.mark.slow

pytest.importorskip("ruff", reason="ruff is not installed: uv sync --group dev")

PAGES = {"adding_a_defense.md": "Posterise", "adding_an_attack.md": "NearestAuxiliary"}
"""Page -> the class that it adds."""
BLOCK = re.compile(r"^`(?P<file>[\w/]+\.py)`[^\n]*\n\n```(?P<language>python|diff)\n(?P<text>.*?)^```$", re.M | re.S)
"""A block, and the file of the repository that the line above it names."""
WHOLE = (
    "tests/common/test_structure.py", "tests/attacks/test_threat_class.py", "tests/defenses/test_spec.py",
    "tests/simulations/test_catalogue.py", "tests/strategies/audit/test_adaptive.py",
    "tests/strategies/federated/test_aggregates.py",
    "tests/simulations/test_secrets.py::test_every_defence_is_tried",
)  # fmt: skip
"""Quick tests that look at all defences and attacks at once."""
OF_ONE = (
    "tests/common/test_every_defense.py", "tests/common/test_every_attack.py", "tests/common/test_extreme_values.py",
)  # fmt: skip
"""Tests of each defence and attack, which run for the new one."""


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """The files that git knows, as they are in the checkout."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, check=True)
    for name in listed.stdout.decode().split("\0"):
        if (ROOT / name).is_file():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, tmp_path / name)
    return tmp_path


def run(clone: Path, *arguments: str, **more: str) -> str:
    """What a command of Python prints in the copy, where it must succeed."""
    environment = {**os.environ, "PYTHONPATH": str(clone), **more}
    done = subprocess.run(
        [sys.executable, *arguments], cwd=clone, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def follow(page: str, clone: Path) -> list[str]:
    """Does what the page says: writes its files, and puts its lines between those that its blocks show; which files these are."""
    found = list(BLOCK.finditer((ROOT / "docs" / page).read_text(encoding="utf-8")))
    for block in found:
        path = clone / block["file"]
        if block["language"] == "python":
            assert not path.exists()
            path.write_text(block["text"], encoding="utf-8")
            continue
        lines = block["text"].splitlines(keepends=True)
        before = "".join(line[1:] or line for line in lines if not line.startswith("+"))
        text = path.read_text(encoding="utf-8")
        assert text.count(before) == 1
        path.write_text(text.replace(before, "".join(line[1:] or line for line in lines)), encoding="utf-8")
    return [block["file"] for block in found]


def checked(clone: Path, files: list[str]) -> None:
    run(clone, "-m", "ruff", "check", "--no-cache", *files)
    run(clone, "-m", "ruff", "format", "--no-cache", "--check", *files)


def output_of_tests(clone: Path, *paths: str, **more: str) -> str:
    return run(clone, "-m", "pytest", "-v", "-p", "no:cacheprovider", *paths, **more)


@pytest.mark.parametrize(("page", "name"), PAGES.items())
def test_nothing_but_the_blocks_of_the_page_must_change(page: str, name: str, clone: Path) -> None:
    files = follow(page, clone)
    package = files[0].partition("/")[0]
    assert [Path(file).name.startswith("test_") for file in files] == [False, False, True]
    assert files[1] in ("defenses/exports.py", "attacks/__init__.py")
    run(clone, "-m", "ruff", "check", "--no-cache", "--fix", "--quiet", files[1])
    checked(clone, files)
    assert f"{files[2]}::" in output_of_tests(clone, files[2], *WHOLE)
    passed = [line for line in output_of_tests(clone, *OF_ONE, TEST_ONLY=name).splitlines() if f"[{name}" in line]
    assert all("SUBPASSED" in line for line in passed)
    assert sum(f"test_every_{package.removesuffix('s')}" in line for line in passed) >= 4
    assert any("test_extreme_values" in line for line in passed)


TINY = (
    "experiment=tiny", "dataset=mnist-5k", "model=lenet", "train-limit=120", "test-limit=40", "rounds=1", "local-epochs=1",
    "attack-workers=0", "attack-rounds=first", "probe-targets=1", "defenses=", "probe-attacks=DLG(iterations=2)",
    "learning-rate-milestones=",
)  # fmt: skip


def test_a_metric_is_its_file_and_its_test(clone: Path, tmp_path: Path) -> None:
    """Clients compute it, rows hold it against both references, and the report lists it under its label."""
    files = follow("adding_a_metric.md", clone)
    assert files == ["attacks/metrics/absolute.py", "tests/attacks/metrics/test_absolute.py"]
    checked(clone, files)
    output_of_tests(clone, files[1], "tests/attacks/metrics/test_registry.py", "tests/common/test_structure.py")
    changes = [word for setting in TINY for word in ("-s", setting)]
    main = "from simulations.cli import main; main()"
    run(clone, "-c", main, "run", "--in-process", "--clients", "2", *changes, "--out", str(tmp_path / "out"))
    rows = [json.loads(line) for line in (tmp_path / "out" / "rows.jsonl").read_text(encoding="utf-8").splitlines()]
    found = {(row["role"], row["reference"]): row for row in rows if row["metric"] == "mae"}
    assert {("attack", "original"), ("attack", "transformed"), ("null baseline", "original")} <= found.keys()
    row = found["attack", "original"]
    assert 0 < row["worst"] <= row["value"] < 1
    assert "<td>absolute error (original)</td>" in (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
