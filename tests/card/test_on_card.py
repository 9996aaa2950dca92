"""What needs a graphics card, on a stand-in for one: the files of ``checks``, each in a process of its own, and what they catch."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CHECKS = sorted((Path(__file__).parent / "checks").glob("check_*.py"))


@pytest.mark.long
@pytest.mark.parametrize("check", CHECKS, ids=lambda path: path.stem)
def test_nothing_mixes_devices_and_results_are_the_processors(check: Path) -> None:
    command = [
        sys.executable, "-m", "pytest", "-q", "--tb=short", "-p", "tests.card.plugin", "-p", "no:cacheprovider",
        "-p", "no:xdist", "-o", "python_files=check_*.py", "-o", "addopts=", str(check),
    ]  # fmt: skip
    # pytest-xdist tells its workers by these, and so would ours.
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout[-12_000:] + done.stderr[-2_000:]
