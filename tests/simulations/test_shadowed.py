"""A folder of one's own that has the name of one of our packages is told."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    ("name", "asked"),
    [
        ("clients", "import simulations"),
        ("attacks", "import simulations"),
        ("attacks", "from clients import answer_audits"),
        ("defenses", "from clients import protect_mod"),
    ],
)
def test_a_folder_that_shadows_a_package_is_named(tmp_path: Path, name: str, asked: str) -> None:
    (tmp_path / name).mkdir()
    (tmp_path / name / "__init__.py").write_text("")
    done = subprocess.run(
        [sys.executable, "-c", asked], cwd=tmp_path, capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)])},
    )  # fmt: skip
    assert done.returncode == 1
    assert f"fedveil's package {name!r} is at {ROOT / name}" in done.stderr
    assert str(tmp_path / name) in done.stderr
    assert "rename that folder" in done.stderr
