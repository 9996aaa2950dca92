"""In which directory a simulation's app works after it has imported ``clients``."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("ours", [True, False])
def test_only_our_own_app_moves_to_its_folder(ours: bool, tmp_path: Path) -> None:
    """An app of another person's writes its model where it was started."""
    script = (
        tmp_path / "flwr-simulation"
    )  # the name by which clients/__init__.py knows that it is loaded by a simulation
    first = str(ROOT if ours else tmp_path)
    script.write_text(f"import os, sys\nsys.path.insert(0, {first!r})\nimport clients\nprint(os.getcwd())\n")
    done = subprocess.run(
        [sys.executable, str(script)], env={**os.environ, "PYTHONPATH": str(ROOT)}, cwd=tmp_path,
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert Path(done.stdout.strip()).resolve() == (ROOT if ours else tmp_path.resolve())
