"""Copies of the example apps, for tests of how an audit runs rather than of what its attacks find."""

import shutil
from pathlib import Path

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
CALL = "Net)  # live"


def with_short_attacks(app: str, folder: Path) -> Path:
    """A copy of an app in a folder, whose audit inverts in 50 steps, with one start."""
    copy = folder / app
    shutil.copytree(EXAMPLES / app, copy, ignore=shutil.ignore_patterns("__pycache__"))
    (server,) = copy.glob("*/server_app.py")
    text = server.read_text()
    assert text.count(CALL) == 1
    attacks = "InvertingGradients(iterations=50, restarts=1); LabelInference()"
    server.write_text(text.replace(CALL, f"Net, probe_attacks={attacks!r})"))
    return copy
