"""A folder of one's own that has the name of one of our packages is told."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


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
